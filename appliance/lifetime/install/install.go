// Package install makes Rivulet a service of the operating system, and removes it again (docs/design/install.md). It
// reads this program's file and alone writes /usr/local/bin/rivulet, the files of systemd.Files, and a configuration if
// there is none and a name was given. Of a package's files it writes and removes none. Installing again changes only
// differences; every file is replaced in one step. Failure: an error names what is missing and how to continue without it.
package install

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"rivulet/appliance/config"
	"rivulet/appliance/state/durable"
	"rivulet/systemd"
)

// ErrNoSystemd is returned if systemd is not PID 1.
var ErrNoSystemd = errors.New("install: systemd does not run this machine, so there is nothing to install a service into; " +
	"run the appliance by hand, or from what starts services here: rivulet run")

// Options of Install.
type Options struct {
	Executable string // this program's file
	Packaged   bool   // a package has the program, its names, the unit and the kernel's settings
	Name       string // of the cluster for its peers; empty: unchanged
	Start      bool
}

// Step is one thing that was done, or was not necessary.
type Step struct {
	What    string `json:"what"`
	Changed bool   `json:"changed"`
}

// Install installs. It returns the completed steps, also with an error.
func Install(ctx context.Context, o Options) (steps []Step, err error) {
	did := func(changed bool, format string, args ...any) {
		steps = append(steps, Step{fmt.Sprintf(format, args...), changed})
	}
	if !HaveSystemd() {
		return nil, ErrNoSystemd
	}
	changed, files := false, systemd.Files()
	if o.Packaged {
		before, active := unitState(ctx), IsActive(ctx)
		found, unit, err := takeOver(did)
		if err != nil {
			return steps, err
		}
		changed = found
		if unit && before == "disabled" { // by the owner of the installation that is taken over
			did(false, "%s was disabled and stays so; to enable it: sudo rivulet install", systemd.UnitName)
			if err := systemctl(ctx, "daemon-reload"); err != nil || !active || !o.Start {
				return steps, err
			}
			return steps, systemctl(ctx, "restart", systemd.UnitName)
		}
		for _, f := range systemd.PackageFiles() {
			apply(ctx, f)
		}
		files = systemd.MachineFiles()
	} else {
		if changed, err = program(o.Executable, did); err != nil {
			return steps, err
		}
	}
	for _, f := range files {
		if f.Path == systemd.JournalPath && journalSize() > journalLimit {
			did(false, "%s is not written: the journal of this machine is bigger than its limit of 128 MB and would lose its oldest entries", f.Path)
			continue
		}
		if f.Path == systemd.WatchdogPath {
			if by := watchdogUser("/proc"); by != "" {
				did(false, "%s is not written: %s has the hardware's watchdog, and systemd would take it at the next boot", f.Path, by)
				continue
			}
		}
		if _, err := os.Lstat(f.Path); o.Packaged && err == nil {
			did(false, "%s", f.Path) // the owner's
			continue
		}
		c, err := writeFile(f.Path, []byte(f.Content), 0o644)
		if err != nil {
			return steps, err
		}
		did(c, "%s", f.Path)
		changed = changed || c && f.Path == systemd.UnitPath
		if c {
			apply(ctx, f)
		}
	}
	if o.Name != "" {
		c, err := setName(config.DefaultPath, o.Name)
		if err != nil {
			return steps, err
		}
		did(c, "name %s in %s", o.Name, config.DefaultPath)
	}
	if err := systemctl(ctx, "daemon-reload"); err != nil {
		return steps, err
	}
	if state := unitState(ctx); o.Packaged && strings.HasPrefix(state, "masked") {
		did(false, "%s is masked and stays so; systemctl unmask %s, then: rivulet install", systemd.UnitName, systemd.UnitName)
		return steps, nil
	}
	enabled := isEnabled(ctx)
	if !enabled {
		if err := systemctl(ctx, "enable", "--quiet", systemd.UnitName); err != nil {
			return steps, err
		}
	}
	did(!enabled, "%s is started at boot", systemd.UnitName)
	if !o.Start {
		return steps, nil
	}
	active := IsActive(ctx)
	switch {
	case active && !changed:
		did(false, "%s runs", systemd.UnitName)
		return steps, nil
	case active:
		err = systemctl(ctx, "restart", systemd.UnitName)
	default:
		err = systemctl(ctx, "start", systemd.UnitName)
	}
	if err != nil {
		return steps, fmt.Errorf("%w; see why: journalctl -u rivulet", err)
	}
	did(true, "%s %s", systemd.UnitName, map[bool]string{true: "was restarted; pods went on", false: "was started"}[active])
	return steps, nil
}

// program installs the program and its further names.
func program(from string, did func(changed bool, format string, args ...any)) (changed bool, err error) {
	if changed, err = copyProgram(from, systemd.Binary); err != nil {
		return false, err
	}
	did(changed, "program %s", systemd.Binary)
	for _, l := range systemd.Links {
		made, err := link(l)
		switch {
		case errors.Is(err, syscall.EROFS): // the program's own folder is writable, /usr/bin may not be
			did(false, "%s is not made: its folder is read-only", l.Path)
		case err != nil:
			return changed, err
		default:
			did(made, "%s", l.Path)
		}
	}
	return changed, nil
}

// copyProgram installs the program in one step, unless it is there.
func copyProgram(from, to string) (changed bool, err error) {
	if same(from, to) {
		return false, nil
	}
	in, err := os.Open(from)
	if err != nil {
		return false, fmt.Errorf("install: %w", err)
	}
	defer in.Close()
	if err := replace(to, 0o755, func(f *os.File) error { _, err := io.Copy(f, in); return durable.Cure(err) }); err != nil {
		return false, err
	}
	return true, nil
}

// link makes a further name of the program. An existing file of that name stays.
func link(l systemd.Link) (made bool, err error) {
	if _, err := os.Lstat(l.Path); err == nil {
		return false, nil
	}
	if err := os.Symlink(l.To, l.Path); err != nil {
		return false, fmt.Errorf("install: %w; see that the folder can be written", err)
	}
	return true, nil
}

// ours reports whether a name is such a link.
func ours(l systemd.Link) bool {
	to, err := os.Readlink(l.Path)
	return err == nil && to == l.To
}

// same reports whether two files are identical or have the same content.
func same(a, b string) bool {
	fa, err1 := os.Stat(a)
	fb, err2 := os.Stat(b)
	if err1 != nil || err2 != nil {
		return false
	}
	if os.SameFile(fa, fb) {
		return true
	}
	return fa.Size() == fb.Size() && fb.Mode().Perm()&0o111 != 0 && bytes.Equal(sum(a), sum(b))
}

func sum(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return []byte(path) // equal to nothing
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return []byte(path)
	}
	return h.Sum(nil)
}

func writeFile(path string, content []byte, mode fs.FileMode) (changed bool, err error) {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return false, nil
	}
	return true, replace(path, mode, func(f *os.File) error { _, err := f.Write(content); return durable.Cure(err) })
}

// replace is durable.Replace with the cure for this place.
func replace(path string, mode fs.FileMode, write func(*os.File) error) error {
	err := durable.Cure(os.MkdirAll(filepath.Dir(path), 0o755))
	if err == nil {
		err = durable.Replace(path, mode, write)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("install: %s: %w; this system keeps its folder read-only: run the appliance without installing it: rivulet run", path, syscall.EROFS)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("install: %s: %w; use sudo", path, fs.ErrPermission)
	}
	return fmt.Errorf("install: %w", err)
}
