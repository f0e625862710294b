package backup

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrBusy is returned while another process saves or restores.
var ErrBusy = errors.New("another backup or restore is at work here")

// lockFile locks a file until release is called or the process ends.
func lockFile(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("backup: %w; run as root, and look at the disk (space, read-only mount)", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("backup: %w; wait until it has ended", ErrBusy)
	}
	return func() { f.Close() }, nil
}
