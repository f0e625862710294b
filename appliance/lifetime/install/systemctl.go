package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"rivulet/systemd"
)

// HaveSystemd reports whether systemd is PID 1, as sd_booted(3) does.
func HaveSystemd() bool {
	fi, err := os.Lstat("/run/systemd/system")
	return err == nil && fi.IsDir()
}

// IsActive reports whether the service runs, is being started or waits for a restart.
func IsActive(ctx context.Context) bool {
	out, _ := exec.CommandContext(ctx, "systemctl", "is-active", systemd.UnitName).Output()
	switch strings.TrimSpace(string(out)) {
	case "active", "activating", "reloading", "deactivating":
		return true
	}
	return false
}

// ShuttingDown reports whether systemd is shutting the machine down.
func ShuttingDown(ctx context.Context) bool {
	out, _ := exec.CommandContext(ctx, "systemctl", "is-system-running").Output() // fails for every state but one
	return strings.TrimSpace(string(out)) == "stopping"
}

// unitState is the state of the unit's file, as systemctl is-enabled prints it.
func unitState(ctx context.Context) string {
	out, _ := exec.CommandContext(ctx, "systemctl", "is-enabled", systemd.UnitName).Output()
	return strings.TrimSpace(string(out))
}

func isEnabled(ctx context.Context) bool {
	return exec.CommandContext(ctx, "systemctl", "is-enabled", "--quiet", systemd.UnitName).Run() == nil
}

func systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("install: systemctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// noSuchUnit is the exit code of systemctl for a unit that systemd does not know.
const noSuchUnit = 5

// Stop stops the service. Only systemd knows whether there is one: an image has the unit in another folder than an
// installation, and a unit without a file may still run.
func Stop(ctx context.Context) error {
	err := systemctl(ctx, "stop", systemd.UnitName)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == noSuchUnit {
		return nil
	}
	return err
}

// Start starts the service.
func Start(ctx context.Context) error { return systemctl(ctx, "start", systemd.UnitName) }

// apply applies a setting at once. A failure is no error: the next boot applies it.
func apply(ctx context.Context, f systemd.File) {
	switch {
	case filepath.Base(filepath.Dir(f.Path)) == "sysctl.d":
		for _, tool := range []string{"/usr/lib/systemd/systemd-sysctl", "/lib/systemd/systemd-sysctl"} {
			if exec.CommandContext(ctx, tool).Run() == nil { // all files, in their order: the owner's may say otherwise
				return
			}
		}
	case f.Path == systemd.JournalPath:
		_ = systemctl(ctx, "try-restart", "systemd-journald.service")
	}
}

// journalLimit is the limit in the drop-in, bytes.
const journalLimit = 128 << 20

// journalSize is the size of the journal on the disk.
func journalSize() (n int64) {
	_ = filepath.WalkDir("/var/log/journal", func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // unreadable files do not count
		}
		if fi, err := d.Info(); err == nil {
			n += fi.Size()
		}
		return nil
	})
	return n
}

// watchdogUser names the program that has the hardware's watchdog open, "" without one or where systemd has it.
func watchdogUser(proc string) string {
	links, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	for _, link := range links {
		pid := filepath.Dir(filepath.Dir(link))
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "/dev/watchdog") && filepath.Base(pid) != "1" {
			comm, _ := os.ReadFile(filepath.Join(pid, "comm"))
			return strings.TrimSpace(string(comm)) + " (pid " + filepath.Base(pid) + ")"
		}
	}
	return ""
}
