package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// makeDev gives the device what a container runtime, a TUN device and terminals need, and no disk of the host.
func makeDev(root string) error {
	dev := filepath.Join(root, "dev")
	if err := mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dev, "net"), 0o755); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	for _, n := range []struct {
		name         string
		major, minor uint32
		mode         uint32
	}{
		{"null", 1, 3, 0o666}, {"zero", 1, 5, 0o666}, {"full", 1, 7, 0o666}, {"random", 1, 8, 0o666}, {"urandom", 1, 9, 0o666},
		{"kmsg", 1, 11, 0o600}, {"tty", 5, 0, 0o666}, {"net/tun", 10, 200, 0o666}, {"fuse", 10, 229, 0o666},
	} {
		path := filepath.Join(dev, n.name)
		if err := unix.Mknod(path, unix.S_IFCHR|n.mode, int(unix.Mkdev(n.major, n.minor))); err != nil {
			return fmt.Errorf("lab: make /dev/%s: %w", n.name, err)
		}
		if err := os.Chmod(path, fs.FileMode(n.mode)); err != nil { // past the umask
			return fmt.Errorf("lab: %w", err)
		}
	}
	for name, to := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, filepath.Join(dev, name)); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
	}
	const flags = unix.MS_NOSUID | unix.MS_NOEXEC
	return errors.Join(
		mount("devpts", filepath.Join(dev, "pts"), "devpts", flags, "newinstance,ptmxmode=0666,mode=0620,gid=5"),
		mount("tmpfs", filepath.Join(dev, "shm"), "tmpfs", flags|unix.MS_NODEV, "mode=1777"),
		mount("mqueue", filepath.Join(dev, "mqueue"), "mqueue", flags|unix.MS_NODEV, ""),
	)
}

// shieldSysctls covers the settings that belong to the whole kernel and that a kubelet writes with files of the device's
// own: it reads back what it wrote, and the host keeps its settings.
func shieldSysctls(root string) error {
	for _, key := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"} {
		real := filepath.Join(root, "proc/sys", key)
		value, err := os.ReadFile(real)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("lab: %w", err)
		}
		own := filepath.Join(root, "run/sysctl", strings.ReplaceAll(key, "/", "."))
		if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
		if err := os.WriteFile(own, value, 0o644); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
		if err := unix.Mount(own, real, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("lab: cover %s: %w", key, err)
		}
	}
	return nil
}
