package watchdog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DiskEvery bounds the wear by the disk probe. One probe makes the card write 4 kB on ext4, as measured, and 20 kB at
// worst (the journal of the file's new time): 0.6 to 3 MB per day of the 250 MB for an idle device.
const DiskEvery = 10 * time.Minute

// Disk is a probe that writes a few bytes in a folder and waits until they are on the disk. A full disk is no error
// here: free space cures it, a restart does not.
func Disk(folder string) func(context.Context) error {
	path := filepath.Join(folder, "probe")
	return func(context.Context) error {
		err := writeThrough(path, time.Now().UTC().Format(time.RFC3339))
		switch {
		case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
			return nil
		case errors.Is(err, syscall.EROFS):
			return fmt.Errorf("%s cannot be written to: the file system is read-only, often after an error of the disk; look at dmesg, back up, and restart the device", folder)
		case err != nil:
			return fmt.Errorf("%s cannot be written to: %w; look at dmesg and at the disk", folder, err)
		}
		return nil
	}
}

// writeThrough overwrites in place: the file keeps its size and its block, which minimizes writes of metadata.
func writeThrough(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text+"\n"), 0); err != nil {
		return err
	}
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}
