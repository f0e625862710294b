package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// diskFile is a device's disk where the lab was made with Options.Disk: an ext4 image. It is mounted in the device's
// own mount namespace, so that it goes with the device and nothing has to be cleaned up.
const diskFile = "disk.img"

// makeDisk makes the image, sparse, unless there is one.
func makeDisk(path string, size int64) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fresh := path + ".new"
	f, err := os.OpenFile(fresh, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	err = f.Truncate(size)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("lab: disk: %w", err)
	}
	// Lazy initialisation would go on writing in the background.
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", fresh).CombinedOutput(); err != nil {
		return fmt.Errorf("lab: disk: mkfs.ext4: %w: %s", err, out)
	}
	return os.Rename(fresh, path)
}

// mountDisk mounts the image at root, in the mount namespace of the caller.
func mountDisk(image, root string) error {
	// mount(8) finds a free loop device and has the kernel free it with the mount.
	if out, err := exec.Command("mount", "-t", "ext4", "-o", "loop,noatime", image, root).CombinedOutput(); err != nil {
		return fmt.Errorf("lab: disk: %w: %s", err, out)
	}
	return nil
}

// forgetUnwritten makes a device's disk as it is after a power cut: what was not written to it is lost, and nothing more is
// written. EXT4_IOC_SHUTDOWN exists for such tests.
func forgetUnwritten(p Proc) error {
	root, err := os.Open(fmt.Sprintf("/proc/%d/root", p.PID))
	if err != nil {
		return fmt.Errorf("lab: disk: %w", err)
	}
	defer root.Close()
	const (
		shutdown   = 0x8004587d // EXT4_IOC_SHUTDOWN
		noLogFlush = 2          // EXT4_GOING_FLAGS_NOLOGFLUSH
	)
	if err := unix.IoctlSetPointerInt(int(root.Fd()), shutdown, noLogFlush); err != nil {
		return fmt.Errorf("lab: disk: %w: this kernel cannot cut the power of an ext4 disk", err)
	}
	return nil
}

// waitDisk waits until no loop device has the image any more: the namespace of a killed device goes a moment after it.
func waitDisk(ctx context.Context, image string) error {
	err := poll(ctx, 10*time.Millisecond, func() (bool, error) {
		files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			return false, err
		}
		for _, f := range files {
			if raw, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(raw)) == image {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("lab: %s is still mounted somewhere: %w", image, err)
	}
	return nil
}
