//go:build !race

package tunnel

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// backWithin is the promise for a tunnel process that was killed.
const backWithin = 3 * time.Second

// Not beside others, and not by the race detector's slower program: it has a bound of real time.
func TestKilledProcessComesBack(t *testing.T) {
	w := newWorld(t)
	w.apply(t)
	v := converse(t, w)
	pid := w.a.pid(t)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	took := v.goesOn(backWithin)
	if now := w.a.pid(t); now == pid {
		t.Errorf("pid %d as before", now)
	}
	t.Logf("back after %s", took)
}
