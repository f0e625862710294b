// Package durable replaces, renames and removes files so that they survive a power cut: a file has its old or its new
// content, complete and with the new mode, and changes are on the disk when a function returns. It has no state. A
// power cut may leave a file with the suffix ".new"; the next write replaces it. An error names the file and the cure.
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

// Failpoint, if a test sets it, is called before each step with the file or folder of the step; its error is the
// step's.
var Failpoint func(step, path string) error

// ErrCut is a Failpoint's error that simulates a power cut: nothing is cleaned up after it.
var ErrCut = errors.New("the power is cut")

func step(name, path string, do func() error) error {
	if Failpoint != nil {
		if err := Failpoint(name, path); err != nil {
			return err
		}
	}
	return do()
}

// Cure adds the cure to an error of the disk, once; nil stays nil.
func Cure(err error) error {
	if err == nil || errors.As(err, new(*cure.Error)) {
		return err
	}
	return &cure.Error{Err: err, Cure: "look at the disk (space, read-only mount)"}
}

// WithCure gives an error of the disk another cure than that of Cure; other errors stay.
func WithCure(err error, other string) error {
	if c := (*cure.Error)(nil); errors.As(err, &c) {
		return &cure.Error{Err: c.Err, Cure: other}
	}
	return err
}

// Write sets content and mode of a file. An unchanged file is not written.
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

// Replace writes a file with a mode and the content that fill writes into f. It returns an error of fill unchanged;
// after any error only the old file exists.
func Replace(path string, mode fs.FileMode, fill func(f *os.File) error) error {
	fresh := path + ".new"
	var f *os.File
	err := step(Create, fresh, func() (err error) {
		if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err = os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_RDWR, mode)
		return err
	})
	if err != nil {
		return Cure(err)
	}
	err = Cure(f.Chmod(mode)) // independent of the umask
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

// Writer stores in Err an error of the disk, to distinguish it from one of the copied source.
type Writer struct {
	io.Writer
	Err error
}

// ReadAt reads what was written, from a Writer that can be read.
func (w *Writer) ReadAt(p []byte, at int64) (int, error) {
	if r, ok := w.Writer.(io.ReaderAt); ok {
		return r.ReadAt(p, at)
	}
	return 0, errors.ErrUnsupported
}

func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		w.Err = err
	}
	return n, err
}

// Rename renames a file or folder, and replaces an existing one. The content is not synced.
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

// Remove removes a file or an empty folder; a missing one is no error.
func Remove(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := step(Removing, path, func() error { return os.Remove(path) }); err != nil {
		return Cure(err)
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir syncs the names in a folder. A file system without support, such as some FAT drivers, is no error.
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
