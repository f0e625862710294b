package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// masked would act on the kernel that all devices share, or wait for hardware that none has.
var masked = []string{"systemd-sysctl.service", "systemd-modules-load.service", "systemd-udevd.service", "systemd-udev-trigger.service",
	"systemd-timesyncd.service", "systemd-random-seed.service", "systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount",
	"systemd-remount-fs.service", "systemd-hwdb-update.service", "systemd-pcrphase-sysinit.service", "systemd-firstboot.service",
	"getty.target", "console-getty.service", "systemd-logind.service", "dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-kernel-config.mount",
	"sys-fs-fuse-connections.mount", "kmod-static-nodes.service", "systemd-repart.service"}

// prepareSystemd lays out what systemd finds in /etc: of the host's units and settings nothing, and a
// target of our own.
func prepareSystemd(etc string) error {
	dir := filepath.Join(etc, "systemd")
	for _, d := range []string{"systemd", "sysctl.d", "tmpfiles.d", "modules-load.d"} {
		d := filepath.Join(etc, d)
		if err := os.Mkdir(d, 0o755); errors.Is(err, fs.ErrExist) {
			continue // booted before: what was installed since stays
		} else if err != nil {
			return fmt.Errorf("lab: %w", err)
		}
		if err := unix.Setxattr(d, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
			return fmt.Errorf("lab: %s: %w: put the lab on a file system like ext4", d, err)
		}
	}
	system := filepath.Join(dir, "system")
	if err := os.MkdirAll(system, 0o755); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	for _, unit := range masked {
		if err := os.Symlink("/dev/null", filepath.Join(system, unit)); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("lab: %w", err)
		}
	}
	if err := maskGenerators(dir); err != nil {
		return err
	}
	// The kernel's log is everybody's.
	for name, content := range map[string]string{"fstab": "", "systemd/journald.conf": "[Journal]\nReadKMsg=no\n"} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(content), 0o644); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
	}
	return nil
}

// maskGenerators turns off what makes units for the host's own programs, databases for example.
func maskGenerators(dir string) error {
	const there = "/usr/lib/systemd/system-generators"
	entries, err := os.ReadDir(there)
	if err != nil {
		return nil //nolint:nilerr // none
	}
	own := filepath.Join(dir, "system-generators")
	if err := os.MkdirAll(own, 0o755); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "systemd-") {
			continue
		}
		if err := os.Symlink("/dev/null", filepath.Join(own, e.Name())); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("lab: %w", err)
		}
	}
	return nil
}

const systemdPath = "/lib/systemd/systemd"

// becomeSystemd ends the boot: the variable tells systemd that it is in a container, where it leaves alone
// what is not the device's.
func becomeSystemd(c bootConfig) error {
	env := append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "container=rivulet-lab", "TERM=dumb"}, c.Env...)
	return fmt.Errorf("lab: run systemd: %w", unix.Exec(systemdPath, []string{systemdPath, "--log-target=console", "--show-status=false"}, env))
}

// askSystemd is askInit for a device whose PID 1 is systemd. It waits for the boot first, and starts rivulet
// only where it is installed.
func (l *Lab) askSystemd(ctx context.Context, d *deviceState, order string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	dev := &Device{l, d.Name}
	if err := dev.waitBoot(ctx); err != nil {
		return "", err
	}
	what, isKill := strings.CutPrefix(order, "kill ")
	if _, err := dev.Run(ctx, "systemctl", "cat", labUnit); err != nil && order != "status" {
		if order == "start" {
			return "not installed", nil
		}
		return "", fmt.Errorf("lab: rivulet is not installed on %s", d.Name)
	}
	var err error
	switch {
	case order == "start" || order == "stop":
		_, err = dev.Run(ctx, "systemctl", order, labUnit)
	case isKill:
		err = dev.killByFile(ctx, what)
	}
	if err != nil {
		return "", err
	}
	out, err := dev.Run(ctx, "systemctl", "show", labUnit, "--property=MainPID,Result")
	if err != nil {
		return "", err
	}
	var pid int
	if _, err := fmt.Sscanf(out, "MainPID=%d", &pid); err == nil && pid > 0 {
		return fmt.Sprintf("running %d", pid), nil
	}
	return "stopped: " + strings.Join(strings.Fields(out), " "), nil
}

const labUnit = "rivulet.service"

// waitBoot waits until systemd has started what it starts at boot, whether all of it works or not.
func (d *Device) waitBoot(ctx context.Context) error {
	err := poll(ctx, 100*time.Millisecond, func() (bool, error) {
		out, _ := d.Run(ctx, "systemctl", "is-system-running") // exit code 1 for degraded
		state := strings.TrimSpace(out)
		return state == "running" || state == "degraded", nil
	})
	if err != nil {
		return fmt.Errorf("lab: systemd on %s does not come up: %w", d.Name, err)
	}
	return nil
}

// killByFile kills the process that the PID file names.
func (d *Device) killByFile(ctx context.Context, what string) error {
	_, err := d.Run(ctx, "sh", "-c", `p=$(cat /run/rivulet/`+what+`.pid) && kill -KILL "$p" && while kill -0 "$p" 2>/dev/null; do :; done`)
	return err
}
