package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// victimEnv makes this test program an Up that is to be killed: DIR|BINARY|MARK.
const victimEnv = "RIVULET_LAB_VICTIM"

func victim(what string) int {
	f := strings.Split(what, "|")
	_, err := Up(context.Background(), Options{
		Dir: f[0], Binary: f[1], Devices: 2, Env: map[string][]string{"": {markEnv + f[2]}},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Up is killed with SIGKILL at moments all over its course; Down then finds everything.
func TestUpKilledAnywhere(t *testing.T) {
	needRoot(t)
	binary := standInBinary(t)
	up := func(tr *traces) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), victimEnv+"="+strings.Join([]string{tr.dir, binary, tr.mark}, "|"), markEnv+tr.mark)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	clean := func(t *testing.T, tr *traces) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		var cgroups []string
		if s, err := loadState(tr.dir); err == nil {
			cgroups = s.Cgroups
		}
		if err := Down(ctx, tr.dir); err != nil && !errors.Is(err, ErrNoLab) {
			t.Fatal(err)
		}
		tr.none(t, cgroups)
	}

	whole := newTraces(t)
	begun := time.Now()
	if err := up(whole).Wait(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	if len(whole.left()) == 0 {
		t.Error("an Up that was not killed left no trace: this test sees nothing")
	}
	clean(t, whole)

	const moments = 16
	for i := range moments {
		after := took * time.Duration(i) / moments
		t.Run(after.Round(time.Millisecond).String(), func(t *testing.T) {
			tr := newTraces(t)
			cmd := up(tr)
			time.Sleep(after) // not a wait for something: the moment is the test
			cmd.Process.Signal(syscall.SIGKILL)
			cmd.Wait()
			clean(t, tr)
		})
	}
}

// A PID in the state file may belong to another process by now.
func TestDownSparesARecycledPID(t *testing.T) {
	needRoot(t)
	innocent := exec.Command("sleep", "60")
	if err := innocent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { innocent.Process.Kill(); innocent.Wait() }()
	p, err := procOf(innocent.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	recycled := Proc{PID: p.PID, Start: p.Start - 1}
	for name, s := range map[string]*state{
		"start time differs": {Boot: hostBoot(), LAN: recycled, Devices: []deviceState{{Name: "a", Init: recycled}}},
		"host has rebooted":  {Boot: "another", LAN: p, Devices: []deviceState{{Name: "a", Init: p}}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "lab")
			if err := os.MkdirAll(filepath.Join(dir, "mine"), 0o755); err != nil {
				t.Fatal(err)
			}
			s.ID = newID()
			if err := s.save(dir); err != nil {
				t.Fatal(err)
			}
			if err := Down(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
			if !p.Alive() {
				t.Fatal("a process that is not the lab's was killed")
			}
			if _, err := os.Stat(filepath.Join(dir, "mine")); err != nil {
				t.Error("a folder that is not the lab's was removed")
			}
			if _, err := os.Stat(stateFile(dir)); err == nil {
				t.Error("the state is still there")
			}
		})
	}
}

func TestKillEndsTheRightProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go cmd.Wait()
	p, err := procOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.kill(t.Context()); err != nil || p.Alive() {
		t.Errorf("alive %t, %v", p.Alive(), err)
	}
	if err := p.kill(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := (Proc{}).kill(t.Context()); err != nil {
		t.Errorf("no process: %v", err)
	}
}

// A process that its Up did not live to write down ends by itself: no Down could find it.
func TestUnrecordedProcessEndsByItself(t *testing.T) {
	needRoot(t)
	for _, name := range []string{lanName, bootName} {
		cmd := reexec(name)
		orders, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		p, err := begin(cmd)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.kill(context.Background()) }()
		if !p.Alive() {
			t.Errorf("%s does not wait to be written down", name)
		}
		orders.Close() // what the kernel does when Up dies
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if poll(ctx, 5*time.Millisecond, func() (bool, error) { return !p.Alive(), nil }) != nil {
			t.Errorf("%s goes on without anybody knowing", name)
		}
	}
}
