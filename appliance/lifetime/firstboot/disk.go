package firstboot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// disk writes below a root, each file in one step that survives a power cut.
type disk struct {
	root string
	// cut is called before each change, for tests: an error is the power cut.
	cut func(what string) error
}

func (d disk) path(name string) string { return filepath.Join(d.root, name) }

func (d disk) step(what, name string) error {
	if d.cut == nil {
		return nil
	}
	return d.cut(what + " " + name)
}

// read returns a file's content, nil if it is not there.
func (d disk) read(name string) ([]byte, error) {
	data, err := os.ReadFile(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// write replaces a file and its mode; one that is as it should be is left alone.
func (d disk) write(name string, data []byte, mode fs.FileMode) error {
	path := d.path(name)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		if fi, err := os.Stat(path); err == nil && fi.Mode().Perm() == mode {
			return nil
		}
	}
	folder := fs.FileMode(0o755)
	if mode&0o077 == 0 && !isFolder(filepath.Dir(path)) {
		folder = 0o700
	}
	if err := os.MkdirAll(filepath.Dir(path), folder); err != nil {
		return err
	}
	if err := d.step("begin", name); err != nil {
		return err
	}
	fresh := path + ".new"
	os.Remove(fresh) // one of an earlier cut, of whatever mode
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	half := len(data) / 2
	if _, err = f.Write(data[:half]); err == nil {
		if err = d.step("half", name); err == nil {
			_, err = f.Write(data[half:])
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = d.step("rename", name)
	}
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return syncFolder(filepath.Dir(path))
}

func (d disk) remove(name string) error {
	if _, err := os.Lstat(d.path(name)); err != nil {
		return nil
	}
	if err := d.step("remove", name); err != nil {
		return err
	}
	if err := os.Remove(d.path(name)); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(d.path(name)))
}

func (d disk) rename(from, to string) error {
	if err := d.step("rename", to); err != nil {
		return err
	}
	if err := os.Rename(d.path(from), d.path(to)); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(d.path(to)))
}

func isFolder(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	f.Sync() //nolint:errcheck // FAT cannot sync a folder everywhere
	return nil
}
