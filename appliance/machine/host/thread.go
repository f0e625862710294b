package host

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThread runs f on a new thread, which ends with f together with f's changes of thread state. It is never the
// process's first thread, whose network /proc/net shows, and which the runtime does not end.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != os.Getpid() {
			done <- f() // never unlocked: the runtime ends the thread
			return
		}
		defer runtime.UnlockOSThread()
		done <- OnThread(f) // keeps the first thread busy until then
	}()
	return <-done
}
