package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// maxSize is far beyond the size of any real file, and small enough for a slow parser, bytes.
const maxSize = 64 << 10

// read returns a file's content and its permissions. A missing file is fs.ErrNotExist; any other error is a *Problem.
func read(path string) ([]byte, fs.FileMode, error) {
	// Without O_NONBLOCK a pipe would block for ever.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, 0, err
		}
		return nil, 0, unreadable(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, 0, unreadable(path, err)
	case info.IsDir():
		return nil, 0, &Problem{File: path, Text: "it is a folder", Cure: "the configuration is one file; move the folder away"}
	case !info.Mode().IsRegular():
		return nil, 0, &Problem{File: path, Text: "it is not a regular file", Cure: "put a text file there"}
	case info.Size() > maxSize:
		return nil, 0, tooLong(path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	switch {
	case err != nil:
		return nil, 0, unreadable(path, err)
	case len(data) > maxSize: // it grows, or has no size
		return nil, 0, tooLong(path)
	}
	return data, info.Mode().Perm(), nil
}

func tooLong(path string) error {
	return &Problem{File: path, Text: fmt.Sprintf("it is longer than %d KiB", maxSize>>10), Cure: "is it the right file? see: rivulet config example"}
}

func unreadable(path string, err error) error {
	why, cure := err.Error(), "look at the disk"
	var errno syscall.Errno
	if errors.As(err, &errno) {
		why = errno.Error()
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		cure = "use sudo"
	case errors.Is(err, syscall.ENOTDIR):
		cure = "a part of the path is a file; correct the path"
	case errors.Is(err, syscall.ELOOP):
		cure = "its symbolic links lead in a circle; remove them"
	}
	return &Problem{File: path, Text: "it cannot be read: " + why, Cure: cure}
}
