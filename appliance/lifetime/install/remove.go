package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"rivulet/systemd"
)

// Remove takes out what Install put in; the service must have been stopped. It
// returns what it removed, and what it could not.
func Remove(ctx context.Context) (removed []string, err error) {
	var errs []error
	remove := func(path string) bool {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return false // os.Remove would complain of a read-only file system
		}
		switch err := os.Remove(path); {
		case err == nil:
			removed = append(removed, path)
			return true
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, fmt.Errorf("install: %w; remove it by hand", err))
		}
		return false
	}
	have := HaveSystemd()
	if have && isEnabled(ctx) {
		errs = append(errs, systemctl(ctx, "disable", "--quiet", systemd.UnitName))
	}
	// Where systemd does not answer, the link at least.
	remove("/etc/systemd/system/multi-user.target.wants/" + systemd.UnitName)
	journal := false
	for _, f := range systemd.Files() {
		if remove(f.Path) && f.Path == systemd.JournalPath {
			journal = true
		}
	}
	for _, f := range systemd.Files() {
		os.Remove(filepath.Dir(f.Path)) // if it is empty: ours, or nobody misses it
	}
	os.Remove(systemd.UnitPath + ".d") // drop-ins are the user's, the folder alone is nobody's
	if have {
		errs = append(errs, systemctl(ctx, "daemon-reload"))
		_ = systemctl(ctx, "reset-failed", systemd.UnitName) // unless it is forgotten already
		if journal {
			_ = systemctl(ctx, "try-restart", "systemd-journald.service")
		}
	}
	for _, name := range systemd.Links {
		if ours(name) {
			remove(name)
		}
	}
	remove(systemd.Binary)
	return removed, errors.Join(errs...)
}
