package install

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"rivulet/systemd"
)

// PackageTool returns the tool that has installed the program from a package, dpkg or rpm; empty if none has.
func PackageTool(ctx context.Context) string {
	switch {
	case exec.CommandContext(ctx, "dpkg-query", "--search", systemd.PackageBinary).Run() == nil:
		return "dpkg"
	case haveRPMs(ctx) && exec.CommandContext(ctx, "rpm", "--query", "--file", systemd.PackageBinary).Run() == nil:
		return "rpm"
	}
	return ""
}

// haveRPMs reports whether rpm has a database: a query makes one otherwise, below /root on Debian.
func haveRPMs(ctx context.Context) bool {
	path, err := exec.CommandContext(ctx, "rpm", "--eval", "%_dbpath").Output()
	if err != nil {
		return false
	}
	_, err = os.Stat(strings.TrimSpace(string(path)))
	return err == nil
}

// wants is what starts the service at boot.
const wants = "/etc/systemd/system/multi-user.target.wants/" + systemd.UnitName

// setAside is what the unit of an installation without a package is called when a package takes its place, and its owner
// has changed it.
const setAside = systemd.UnitPath + ".before-package"

// takeOver removes an installation without a package, whose unit and program would hide the package's: found reports
// whether anything of one was there, unit whether its unit was. The unit goes last, so that what is cut off is found again;
// one that is not as it was written is set aside.
func takeOver(did func(changed bool, format string, args ...any)) (found, unit bool, err error) {
	if info, err := buildinfo.ReadFile(systemd.Binary); err == nil && strings.HasPrefix(info.Path, "rivulet/") {
		if err := os.Remove(systemd.Binary); err != nil {
			return false, false, fmt.Errorf("install: %w; it would run in place of %s: remove it by hand", err, systemd.PackageBinary)
		}
		found = true
		did(true, "%s is removed: the package has the program", systemd.Binary)
	}
	if asWritten(systemd.SysctlPath) {
		_ = os.Remove(systemd.SysctlPath) // the package's is the same
	}
	for _, l := range systemd.Links {
		if ours(l) {
			_ = os.Remove(l.Path)
		}
	}
	raw, err := os.ReadFile(systemd.UnitPath)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return found, false, nil
	case err != nil:
		return found, false, fmt.Errorf("install: %w", err)
	case string(raw) == systemd.Unit:
		if err := os.Remove(systemd.UnitPath); err != nil {
			return found, true, fmt.Errorf("install: %w", err)
		}
		did(true, "%s is removed: the package has the unit", systemd.UnitPath)
	case bytes.Contains(raw, []byte(systemd.Binary)):
		if err := os.Rename(systemd.UnitPath, setAside); err != nil {
			return found, true, fmt.Errorf("install: %w", err)
		}
		did(true, "%s was changed here and is %s now: the package has the unit; changes belong into %s.d", systemd.UnitPath, setAside, systemd.UnitPath)
	default:
		return found, false, nil // the owner's own, for the package's program
	}
	_ = os.Remove(wants) // it leads to a unit that is gone
	return true, true, nil
}

// Packaged reports whether the program of this path is a package's: it is at that place, and the package's unit is there.
func Packaged(executable string) bool {
	_, err := os.Stat(systemd.PackageFiles()[0].Path)
	return err == nil && executable == systemd.PackageBinary
}

// asWritten reports whether a file of Files has the content that Install writes.
func asWritten(path string) bool {
	raw, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	for _, f := range systemd.Files() {
		if f.Path == path {
			return string(raw) == f.Content
		}
	}
	return false
}
