// Package tree finds the files of the source tree that a test program was built from,
// wherever the program is started. It reads and writes nothing else.
package tree

import (
	"os"
	"path/filepath"
	"runtime"
)

// Path joins elem to the root of the tree. The root is where this file was compiled, or,
// in a program built with -trimpath, the nearest folder above the working directory that
// has a go.mod. Path does not check that the result exists.
func Path(elem ...string) string {
	return filepath.Join(append([]string{root()}, elem...)...)
}

func root() string {
	_, file, _, _ := runtime.Caller(0)
	if filepath.IsAbs(file) {
		return filepath.Join(filepath.Dir(file), "..", "..", "..")
	}
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for up := dir; up != "/"; up = filepath.Dir(up) {
		if _, err := os.Stat(filepath.Join(up, "go.mod")); err == nil {
			return up
		}
	}
	return dir
}
