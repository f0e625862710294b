package process

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// One that heeds the first signal ends with it, one that stands still and heeds nothing by force, one that is gone is
// no process; and a child says how it ended.
func TestEndAndStop(t *testing.T) {
	for name, script := range map[string]string{"gentle": `echo up; exec sleep 600`, "stubborn": `trap '' TERM; echo up; kill -STOP $$; while :; do read x; done`} {
		cmd := exec.Command("sh", "-c", script)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		c, err := Start(cmd, syscall.SIGKILL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		h, err := Open(c.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if stuck := End(context.Background(), []Handle{h}, 500*time.Millisecond, 20*time.Second); len(stuck) > 0 {
			t.Errorf("%s: %v", name, stuck)
		}
		h.Close()
		if err := c.Stop(time.Second, func() { t.Errorf("%s: it is there", name) }); err == nil {
			t.Errorf("%s: ended without a signal", name)
		}
		if _, err := Open(c.Pid); err == nil {
			t.Errorf("%s: there is a process %d", name, c.Pid)
		}
	}
	if _, err := Start(exec.Command("/nowhere"), syscall.SIGKILL, nil); err == nil {
		t.Error("a program that is not there was started")
	}
}

// A process may have its number and no arguments yet when somebody asks which program it runs.
func TestOneThatHasJustBeenStartedIsEnded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	for range 200 {
		c, err := Start(exec.Command("sleep", "600"), syscall.SIGKILL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strconv.Itoa(c.Pid)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := EndOld(t.Context(), file, "sleep", 20*time.Second, 20*time.Second, nil); err != nil {
			t.Fatal(err)
		}
		select {
		case <-c.Done:
		case <-time.After(20 * time.Second):
			t.Fatal("it runs on")
		}
		if err := EndOld(t.Context(), file, "sleep", 0, time.Second, func(pid int) { t.Errorf("%d is no more", pid) }); err != nil {
			t.Fatal(err)
		}
	}
}
