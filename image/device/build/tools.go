package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// run runs a tool of the build host in a folder. Its output is in the error.
func run(dir, program string, args ...string) error { return runIn(dir, nil, "", program, args...) }

func runIn(dir string, env []string, input, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "LC_ALL=C.UTF-8", "TZ=UTC", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin"), env...)
	if input != "" {
		cmd.Stdin = strings.NewReader(input)
	}
	if cmd.Err != nil { // sbin may be missing in the caller's PATH
		if path := "/usr/sbin/" + program; exists(path) {
			cmd.Path, cmd.Err = path, nil
		} else {
			return fmt.Errorf("there is no %s; make image-deps", program)
		}
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		text := said.String()
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(text[max(0, len(text)-2000):]))
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// put writes a file and the folders above it.
func put(path, content string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil { // do not write through a link
		return err
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// putAll writes world-readable files, by path.
func putAll(files map[string]string) error {
	var errs []error
	for path, content := range files {
		errs = append(errs, put(path, content, 0o644))
	}
	return errors.Join(errs...)
}

// removeAll removes the matches of patterns below the root.
func (j *job) removeAll(patterns ...string) error {
	var errs []error
	for _, pattern := range patterns {
		found, _ := filepath.Glob(j.in(pattern)) // the patterns are well formed
		for _, f := range found {
			errs = append(errs, os.RemoveAll(f))
		}
	}
	return errors.Join(errs...)
}

// link makes a symbolic link and replaces an existing file.
func link(to, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return os.Symlink(to, path)
}

func copyFile(from, to string, mode os.FileMode) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return put(to, string(raw), mode)
}

// settle gives every file of a tree the same time, which packers write.
func settle(dir string, t time.Time) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		return os.Chtimes(path, t, t)
	})
}
