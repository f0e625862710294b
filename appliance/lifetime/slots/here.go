package slots

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"rivulet/image/device/layout"
)

// Running returns the running slot of a device image; ErrNoImage if there is none.
func Running() (layout.Slot, error) {
	raw, err := os.ReadFile(layout.RunSlot)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, ErrNoImage
	}
	if text := strings.TrimSpace(string(raw)); err == nil && len(text) == 1 && layout.Slot(text[0]).Valid() {
		return layout.Slot(text[0]), nil
	}
	return 0, fmt.Errorf("slots: %s does not say which slot runs (%v); restart the device", layout.RunSlot, err)
}

// OpenRoot opens the partition of the other slot exclusively.
func OpenRoot(to layout.Slot) (*os.File, error) {
	raw, err := os.ReadFile(layout.RunPart(to.String()))
	if err != nil {
		return nil, failed(fmt.Errorf("%w; restart the device", err))
	}
	// O_EXCL: the kernel refuses it if it is mounted after all.
	f, err := os.OpenFile(strings.TrimSpace(string(raw)), os.O_RDWR|os.O_EXCL, 0)
	if err != nil {
		return nil, failed(fmt.Errorf("%w; run as root on the device itself", err))
	}
	return f, nil
}

// Folder is the boot partition of this device while it is writable.
type Folder struct{ dir string }

// Change makes the boot partition writable while f runs.
func Change(f func(Boot) error) (err error) {
	dir := layout.BootDir
	if err := remount(dir, 0); err != nil {
		return fmt.Errorf("slots: the boot partition cannot be written to: %w; run as root, and look at dmesg: a bad card refuses", err)
	}
	defer func() {
		if rerr := remount(dir, unix.MS_RDONLY); rerr != nil && err == nil && !errors.Is(rerr, unix.EBUSY) {
			err = fmt.Errorf("slots: the boot partition stays writable: %w; restart the device", rerr)
		}
	}()
	return f(Folder{dir})
}

func remount(dir string, flags uintptr) error {
	return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|flags, "")
}

func (d Folder) at(name string) string { return filepath.Join(d.dir, filepath.FromSlash(name)) }

// List implements Boot.
func (d Folder) List(dir string) (names []string, err error) {
	es, err := os.ReadDir(d.at(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range es {
		names = append(names, e.Name())
	}
	return names, cure(err)
}

func (d Folder) Read(name string) ([]byte, error) {
	raw, err := os.ReadFile(d.at(name))
	return raw, cure(err)
}

func (d Folder) Write(name string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(d.at(name)), 0o755); err != nil {
		return cure(err)
	}
	return d.write(name, content, os.O_CREATE|os.O_TRUNC)
}

// Overwrite implements Boot.
func (d Folder) Overwrite(name string, content []byte) error { return d.write(name, content, 0) }

// OverwriteEnd implements Boot.
func (d Folder) OverwriteEnd(name string, content []byte) error {
	fi, err := os.Stat(d.at(name))
	if err != nil {
		return cure(err)
	}
	return d.writeAt(name, content, 0, fi.Size()-int64(len(content)))
}

func (d Folder) write(name string, content []byte, flags int) error {
	return d.writeAt(name, content, flags, 0)
}

func (d Folder) writeAt(name string, content []byte, flags int, at int64) error {
	f, err := os.OpenFile(d.at(name), os.O_WRONLY|flags, 0o644)
	if err != nil {
		return cure(err)
	}
	defer f.Close()
	_, err = f.WriteAt(content, at)
	if err == nil {
		err = f.Sync()
	}
	return d.sync(err)
}

// Rename implements Boot.
func (d Folder) Rename(from, to string) error { return d.sync(os.Rename(d.at(from), d.at(to))) }

// Remove implements Boot.
func (d Folder) Remove(name string) error { return d.sync(os.RemoveAll(d.at(name))) }

// sync syncs the whole file system after a change, unless that failed: FAT has no journal, and fsync of a folder does
// not write the allocation table.
func (d Folder) sync(changed error) error {
	if changed != nil {
		return cure(changed)
	}
	f, err := os.Open(d.dir)
	if err != nil {
		return cure(err)
	}
	defer f.Close()
	return cure(unix.Syncfs(int(f.Fd())))
}

func cure(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("slots: the boot partition: %w; look at its room (df) and at dmesg", err)
}

var _ Boot = Folder{}
