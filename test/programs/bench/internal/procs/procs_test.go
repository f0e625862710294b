package procs

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	p, err := parseStat("42 (a) name) S 7 42 42 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 12345 1000 1")
	if err != nil {
		t.Fatal(err)
	}
	if p.Parent != 7 || p.CPU != 2*time.Second || p.Started != 123450*time.Millisecond {
		t.Errorf("got %+v", p)
	}
	for _, bad := range []string{"", "42", "42 (x) S 1", "42 (x) S x 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestOneself(t *testing.T) {
	m, err := MemoryOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if m.Anonymous < 100<<10 || m.PSS < m.Anonymous || m.PSS > 1<<30 {
		t.Errorf("a test that takes %+v", m)
	}
	peak, err := Peak(os.Getpid())
	if err != nil || peak < m.Anonymous {
		t.Errorf("peak %d, now %+v, %v", peak, m, err)
	}
}

func TestTreeHoldsAChildAndItsStart(t *testing.T) {
	before := time.Now()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	tree, err := Tree(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range tree {
		if p.PID == cmd.Process.Pid {
			if d := p.StartTime().Sub(before); d < -20*time.Millisecond || d > 5*time.Second {
				t.Errorf("started %v after it was started", d)
			}
			return
		}
	}
	t.Errorf("%d is not in %+v", cmd.Process.Pid, tree)
}
