package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"rivulet/appliance/state/paths"
)

// Launch is the first call of `rivulet run`: it continues an update in progress, which may take the whole window, and
// returns which version this process has to become.
func (d *Device) Launch(ctx context.Context) (Choice, error) {
	if _, err := os.Stat(filepath.Join(d.dir(), stateName)); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return Choice{}, nil // never updated; or no state folder, for which the store has a better error
	}
	release, err := lock(d.dir())
	if errors.Is(err, ErrBusy) || err == nil && d.supervised() {
		if err == nil {
			release()
		}
		return Choice{}, nil // rivulet runs here already: the usual error follows
	}
	if err != nil {
		return Choice{}, err
	}
	defer release()
	defer patient(extendEvery, d.Log)()
	self, err := BuildID("/proc/self/exe")
	if err != nil {
		return Choice{}, err
	}
	choice, err := decide(ctx, d, self, d.Log)
	if err != nil || choice.Run == nil {
		return choice, err
	}
	return d.usable(choice), nil
}

// supervised reports whether a supervisor has the store open.
func (d *Device) supervised() bool {
	f, err := os.Open(paths.Store(d.State))
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// usable falls back to this binary if the chosen one is missing. The engine of one that is older than the data is not
// started, and the page says why.
func (d *Device) usable(c Choice) Choice {
	path := d.binary(*c.Run)
	id, err := BuildID(path)
	if err == nil && id != c.Run.BuildID {
		err = fmt.Errorf("%s is another program", path)
	}
	if err != nil {
		d.Log.Error("the current version cannot be started; going on with this binary", "version", c.Run.Name, "err", err)
		return Choice{}
	}
	return c
}

// Become replaces this process by another version, or by itself for a new start.
func (d *Device) Become(path string) error {
	err := unix.Exec(path, append([]string{binaryName}, d.Args...), os.Environ())
	return fmt.Errorf("update: %s: %w", path, err)
}

// Binary is the file of a version.
func (d *Device) Binary(v Version) string { return d.binary(v) }
