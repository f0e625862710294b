package host

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThread runs f on a thread that ends with it, and with which ends what it changed of itself.
// It is never the process's first thread: /proc/net shows that one's network, and the runtime
// does not end it.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != os.Getpid() {
			done <- f() // never unlocked: the runtime ends the thread
			return
		}
		defer runtime.UnlockOSThread()
		done <- OnThread(f) // until then nobody else gets the first thread
	}()
	return <-done
}
