package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("lab: mount %s on %s: %w", source, target, err)
	}
	return nil
}

// makeRoot makes the device's file system and moves into it:
//
//	/              DIR/NAME/root, a plain folder: the device's disk (containerd's overlays need a real file system); or DIR/NAME/disk.img
//	/usr, /bin …   the host's, read-only
//	/etc           the host's with what the device writes beside it in DIR/NAME/etc, or in /.lab/etc on its own disk
//	/usr/local/bin where PID 1 is systemd: its own, for what is installed
//	/opt/rivulet   the folder of the binary, read-only
//	/host          the host's root file system, read-only, without what is mounted below it
//	/run, /tmp     in memory, gone with the power; /dev too
//	/proc, /sys    its own, cgroups too
func makeRoot(c bootConfig) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	root := filepath.Join(c.Dir, "root")
	if c.Disk != "" {
		if err := mountDisk(c.Disk, root); err != nil {
			return err
		}
	} else if err := mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	for _, dir := range []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if err := shareHost(root, dir); err != nil {
			return err
		}
	}
	if err := makeEtc(c, root); err != nil {
		return err
	}
	if err := readOnly("/", filepath.Join(root, "host")); err != nil {
		return err
	}
	if err := readOnly(c.BinDir, filepath.Join(root, "opt/rivulet")); err != nil {
		return err
	}
	if c.Systemd {
		// What is installed lies here, on the device's own disk.
		own := filepath.Join(root, "var/usr-local-bin")
		if err := os.MkdirAll(own, 0o755); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
		if err := mount(own, filepath.Join(root, "usr/local/bin"), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := makeDev(root); err != nil {
		return err
	}
	for _, m := range []struct{ fstype, dir, opts string }{
		{"proc", "proc", ""}, {"sysfs", "sys", ""}, {"tmpfs", "run", "mode=755"}, {"tmpfs", "tmp", "mode=1777"},
	} {
		if err := mount(m.fstype, filepath.Join(root, m.dir), m.fstype, unix.MS_NOSUID|unix.MS_NODEV, m.opts); err != nil {
			return err
		}
	}
	if err := shieldSysctls(root); err != nil {
		return err
	}
	if c.Memory > 0 {
		if err := showMemory(root, c.Memory); err != nil {
			return err
		}
	}
	if err := mountCgroups(c.Hierarchies, root); err != nil {
		return err
	}
	for _, d := range []string{"var/log", "var/lib", "root", "run/lock"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
	}
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("lab: change root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("lab: leave the host's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	// The kubelet wants mounts to propagate into pods.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	return nil
}

// shareHost gives the device the host's /dir, or the same symbolic link (bin -> usr/bin).
func shareHost(root, dir string) error {
	host, here := "/"+dir, filepath.Join(root, dir)
	fi, err := os.Lstat(host)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if fi.Mode()&fs.ModeSymlink == 0 {
		return readOnly(host, here)
	}
	to, err := os.Readlink(host)
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if err := os.Symlink(to, here); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("lab: %w", err)
	}
	return nil
}

func readOnly(from, to string) error {
	if err := mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}
