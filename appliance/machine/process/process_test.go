package process

import (
	"context"
	"os/exec"
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
