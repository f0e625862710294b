package tunnel

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// killTimer kills this process at a time on CLOCK_BOOTTIME: a timer of the kernel with SIGKILL as its signal, which
// also ends a stopped process.
type killTimer struct {
	made bool
	id   int32
}

// sigevent is the kernel's, of 64 bytes at least; notify 0 is a signal to the process.
type sigevent struct {
	value          uintptr
	signal, notify int32
	_              [52]byte
}

// set moves the time; 0 stops the timer.
func (k *killTimer) set(at time.Duration) error {
	if !k.made {
		event := sigevent{signal: int32(unix.SIGKILL)}
		if _, _, e := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&k.id))); e != 0 {
			return fmt.Errorf("tunnel: the kernel makes no timer for the lease (%w): raise the limit of pending signals (ulimit -i)", e)
		}
		k.made = true
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
	if _, _, e := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(k.id), unix.TIMER_ABSTIME, uintptr(unsafe.Pointer(&spec)), 0, 0, 0); e != 0 {
		return fmt.Errorf("tunnel: set the timer of the lease: %w: report it as a bug of rivulet", e)
	}
	return nil
}
