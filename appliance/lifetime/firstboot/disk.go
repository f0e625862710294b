package firstboot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"rivulet/appliance/state/durable"
)

// disk writes below a root, each file in one step that survives a power cut.
type disk struct {
	root string
}

func (d disk) path(name string) string { return filepath.Join(d.root, name) }

// read returns a file's content, nil if it does not exist.
func (d disk) read(name string) ([]byte, error) {
	data, err := os.ReadFile(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// write replaces a file and its mode; an unchanged one is not written.
func (d disk) write(name string, data []byte, mode fs.FileMode) error {
	path := d.path(name)
	folder := fs.FileMode(0o755)
	if mode&0o077 == 0 && !isFolder(filepath.Dir(path)) {
		folder = 0o700
	}
	if err := os.MkdirAll(filepath.Dir(path), folder); err != nil {
		return err
	}
	if err := durable.Write(path, data, mode); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (d disk) remove(name string) error { return durable.Remove(d.path(name)) }

func (d disk) rename(from, to string) error { return durable.Rename(d.path(from), d.path(to)) }

func isFolder(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// At returns the device with this root, whose boot partition is made writable for each change.
func At(root, boot string) Device {
	return Device{Root: root, Boot: boot, Open: func() (func(), error) { return writable(filepath.Join(root, boot)) }}
}

// writable makes the boot partition writable if it is mounted read-only.
func writable(dir string) (shut func(), err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, err
	}
	if st.Flags&unix.ST_RDONLY == 0 {
		return func() {}, nil
	}
	remount := func(how string) error {
		out, err := exec.Command("mount", "-o", "remount,"+how, dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("mount -o remount,%s %s: %w: %s", how, dir, err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	if err := remount("rw"); err != nil {
		return nil, err
	}
	return func() { remount("ro") }, nil //nolint:errcheck // the next boot makes it read-only
}
