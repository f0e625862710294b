// Package durable replaces, renames and removes files so that they survive a power cut:
// a file has its old content or its new one, whole and with the new mode, and what a
// function has done when it returns stays done. It reads and writes what it is given and
// keeps no state. What a cut leaves is a file of the same name with ".new" behind it;
// the next write replaces it. An error names the file and what helps against it.
package durable

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"rivulet/fabric/cure"
)

// Steps of a write, in their order; Remove has the last two of its own.
const (
	Create     = "create"
	Content    = "content"
	Sync       = "sync"
	Renaming   = "rename"
	Removing   = "remove"
	SyncFolder = "sync folder"
)

// Failpoint, if a test sets it, is called before each step with the file or folder that
// the step is about: its error is the step's.
var Failpoint func(step, path string) error

// ErrCut is a Failpoint's error that stands for a power cut: nothing is tidied up after it.
var ErrCut = errors.New("the power is cut")

func step(name, path string, do func() error) error {
	if Failpoint != nil {
		if err := Failpoint(name, path); err != nil {
			return err
		}
	}
	return do()
}

// Cure adds to an error of the disk what helps, once; nil stays nil.
func Cure(err error) error {
	if err == nil || errors.As(err, new(*cure.Error)) {
		return err
	}
	return &cure.Error{Err: err, Cure: "look at the disk (space, read-only mount)"}
}

// WithCure is an error of the disk with another cure than that of Cure; other errors stay.
func WithCure(err error, other string) error {
	if c := (*cure.Error)(nil); errors.As(err, &c) {
		return &cure.Error{Err: c.Err, Cure: other}
	}
	return err
}

// Write gives a file this content and mode. One that has both is left alone.
func Write(path string, content []byte, mode fs.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		if fi, err := os.Lstat(path); err == nil && fi.Mode() == mode {
			return nil
		}
	}
	return Replace(path, mode, func(f *os.File) error {
		_, err := f.Write(content)
		return Cure(err)
	})
}

// Replace gives a file a mode and what fill writes into f. An error of fill is returned as
// it is; after any error the old file is there and no other.
func Replace(path string, mode fs.FileMode, fill func(f *os.File) error) error {
	fresh := path + ".new"
	var f *os.File
	err := step(Create, fresh, func() (err error) {
		if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err = os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		return err
	})
	if err != nil {
		return Cure(err)
	}
	err = Cure(f.Chmod(mode)) // whatever the umask is
	if err == nil {
		err = step(Content, fresh, func() error { return fill(f) })
	}
	if err == nil {
		err = Cure(step(Sync, fresh, f.Sync))
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = Cure(step(Renaming, path, func() error { return os.Rename(fresh, path) }))
	}
	if err != nil {
		if !errors.Is(err, ErrCut) {
			os.Remove(fresh)
		}
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Writer remembers in Err that it was the disk that failed, not what is copied to it.
type Writer struct {
	io.Writer
	Err error
}

func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		w.Err = err
	}
	return n, err
}

// Rename moves a file or folder, over what is there. Its content is not synced.
func Rename(from, to string) error {
	if err := step(Renaming, to, func() error { return os.Rename(from, to) }); err != nil {
		return Cure(err)
	}
	err := SyncDir(filepath.Dir(to))
	if old := filepath.Dir(from); err == nil && old != filepath.Dir(to) {
		err = SyncDir(old)
	}
	return err
}

// Remove removes a file or an empty folder; that there is none is no error.
func Remove(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := step(Removing, path, func() error { return os.Remove(path) }); err != nil {
		return Cure(err)
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes what was done to the names in a folder survive. A file system that
// cannot, as some FAT drivers, is no error.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return Cure(err)
	}
	defer d.Close()
	err = step(SyncFolder, dir, d.Sync)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		return nil
	}
	return Cure(err)
}
