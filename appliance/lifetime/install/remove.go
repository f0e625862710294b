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

// Remove removes what Install installed; the service must have been stopped. Packaged, the files of the package stay, and
// those that their owner has changed. It returns what was removed, and an error with what was not.
func Remove(ctx context.Context, packaged bool) (removed []string, err error) {
	var errs []error
	remove := func(path string) bool {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return false // os.Remove would fail on a read-only file system
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
	// At least the link, if systemd does not answer.
	remove(wants)
	journal := false
	for _, f := range systemd.Files() {
		if packaged && !asWritten(f.Path) {
			continue
		}
		if remove(f.Path) && f.Path == systemd.JournalPath {
			journal = true
		}
	}
	for _, f := range systemd.Files() {
		os.Remove(filepath.Dir(f.Path)) // if it is empty
	}
	os.Remove(systemd.UnitPath + ".d") // drop-ins are the user's; an empty folder is removed
	if have {
		errs = append(errs, systemctl(ctx, "daemon-reload"))
		_ = systemctl(ctx, "reset-failed", systemd.UnitName) // unless it is unknown already
		if journal {
			_ = systemctl(ctx, "try-restart", "systemd-journald.service")
		}
	}
	remove(systemd.ModulesPath)
	for _, l := range systemd.Links {
		if ours(l) {
			remove(l.Path)
		}
	}
	if !packaged {
		remove(systemd.Binary)
	}
	return removed, errors.Join(errs...)
}
