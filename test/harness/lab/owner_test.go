package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// keeperEnv makes this test program one that owns a lab until it ends: PARENT|BINARY|MARK.
const keeperEnv = "RIVULET_LAB_KEEPER"

// keeper prints the lab's folder once it is up, and stays until its input ends.
func keeper(what string) int {
	f := strings.Split(what, "|")
	dir, err := OwnDir(f[0], "lab-")
	if err == nil {
		_, err = Up(context.Background(), Options{Dir: dir, Binary: f[1], Devices: 2, Env: map[string][]string{"": {markEnv + f[2]}}})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(dir)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// keep starts a keeper, and waits until its lab is up.
func keep(t *testing.T, parent, binary string) (*exec.Cmd, *traces, *state) {
	t.Helper()
	tr := &traces{mark: newID(), namespaces: map[string]bool{}}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), keeperEnv+"="+strings.Join([]string{parent, binary, tr.mark}, "|"), markEnv+tr.mark)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the lab did not come up: %v", err)
	}
	tr.dir = strings.TrimSpace(line)
	s, err := loadState(tr.dir)
	if err != nil {
		t.Fatal(err)
	}
	tr.remember(s.LAN)
	for _, d := range s.Devices {
		tr.remember(d.Init)
	}
	return cmd, tr, s
}

// However its owner ends, nothing of the lab is left within seconds, the warden included.
func TestLabEndsWithItsOwner(t *testing.T) {
	needRoot(t)
	binary := standInBinary(t)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd, tr, s := keep(t, t.TempDir(), binary)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			tr.none(t, nil)
			tr.noCgroups(t, s.Cgroups)
		})
	}
	t.Run("Down", func(t *testing.T) {
		cmd, tr, s := keep(t, t.TempDir(), binary)
		if err := Down(t.Context(), tr.dir); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		tr.none(t, s.Cgroups)
	})
}

// A lab whose owner and warden were both killed is swept; one whose owner runs, and one of a person, stay.
func TestSweep(t *testing.T) {
	needRoot(t)
	binary, parent := standInBinary(t), t.TempDir()
	cmd, dead, s := keep(t, parent, binary)
	_, kept, living := keep(t, parent, binary)
	persons := filepath.Join(parent, "lab-person")
	l, err := Up(t.Context(), Options{Dir: persons, Binary: binary, Devices: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, dir := range []string{persons, kept.dir} {
			if err := Down(context.Background(), dir); err != nil {
				t.Error(err)
			}
		}
	})
	o, ok := owned(dead.dir)
	if !ok || !o.Warden.Alive() {
		t.Fatalf("no warden: %+v", o)
	}
	if err := o.Warden.kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if !s.LAN.Alive() {
		t.Error("the lab ended without a warden: this test shows nothing")
	}
	swept, err := Sweep(t.Context(), filepath.Join(parent, "lab-*"))
	if err != nil || fmt.Sprint(swept) != fmt.Sprint([]string{dead.dir}) {
		t.Errorf("swept %v, %v, want %s", swept, err, dead.dir)
	}
	dead.none(t, s.Cgroups)
	if ds, err := l.Devices(); err != nil || !living.LAN.Alive() || !living.Devices[0].Init.Alive() {
		t.Errorf("a lab that is not to be swept was: %v %v", ds, err)
	}
	if ps, err := loadState(persons); err != nil || !ps.Devices[0].Init.Alive() {
		t.Errorf("a person's lab was swept: %v", err)
	}
	// An owner of another boot has ended, whoever has its PID now.
	o, _ = owned(kept.dir)
	real := o
	o.Boot = "another"
	if err := replaceFile(ownerFile(kept.dir), o); err != nil {
		t.Fatal(err)
	}
	if before, _ := owned(kept.dir); before.Owner.Alive() {
		t.Error("an owner of another boot is taken for one that runs")
	}
	if err := replaceFile(ownerFile(kept.dir), real); err != nil {
		t.Fatal(err)
	}
}

// noCgroups waits until they are gone: the warden removes them after all else of a device.
func (tr *traces) noCgroups(t *testing.T, cgroups []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, c := range cgroups {
		if poll(ctx, 20*time.Millisecond, func() (bool, error) { _, err := os.Stat(c); return err != nil, nil }) != nil {
			t.Errorf("left behind: cgroup %s", c)
		}
	}
}
