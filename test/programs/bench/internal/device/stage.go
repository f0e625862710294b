// Package device gives measurements what they need of a lab: a folder of their own,
// a copy of the binary that no build changes under them, devices with clients that
// see their API servers, and the end of everything, also after a failure.
//
// It writes only below its folder, which it removes. A folder that a run left
// behind when it was killed is cleaned by the next one.
package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"rivulet/test/harness/lab"
)

// Image is the fast image that measurements run, and where devices find it.
const (
	Image     = "rivulet.dev/demo-web:1"
	imageFile = "demo-web.tar"
)

// slimEngine lies beside a binary of make slim.
const slimEngine = "rivulet-full"

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// Stage is the folder: binaries that devices see as /opt/rivulet, and one lab at a time.
type Stage struct {
	Dir  string
	Tell func(format string, args ...any)
	lock *os.File
}

// NewStage copies the binary (and the image beside it) into dir.
func NewStage(ctx context.Context, dir, binary string, tell func(string, ...any)) (*Stage, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("bench: namespaces and cgroups need root: use sudo")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("bench: another run uses %s: wait for it, or choose another folder with -dir", dir)
	}
	s := &Stage{Dir: dir, Tell: tell, lock: lock}
	if err := s.clean(ctx); err != nil {
		lock.Close()
		return nil, err
	}
	for from, to := range map[string]string{binary: s.Binary(), filepath.Join(filepath.Dir(binary), imageFile): filepath.Join(s.folder("real"), imageFile)} {
		if err := copyFile(from, to); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: build it with make build bin/demo-web.tar", err), s.Close(ctx))
		}
	}
	// What make slim makes brings its engine in a file of its own.
	if full := filepath.Join(filepath.Dir(binary), slimEngine); exists(full) {
		if err := copyFile(full, filepath.Join(s.folder("real"), slimEngine)); err != nil {
			return nil, errors.Join(err, s.Close(ctx))
		}
	}
	return s, nil
}

func (s *Stage) folder(name string) string { return filepath.Join(s.Dir, name) }

// Binary is the product as users run it.
func (s *Stage) Binary() string { return filepath.Join(s.folder("real"), "rivulet") }

// LabDir is where the lab of the moment lives.
func (s *Stage) LabDir() string { return s.folder("lab") }

// Beside makes another folder for devices, with a program of its own called rivulet;
// the product lies beside it as "product", and is the same file as Binary.
func (s *Stage) Beside(name string, program func(path string) error) (binary string, err error) {
	dir := s.folder(name)
	binary = filepath.Join(dir, "rivulet")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	links := map[string]string{s.Binary(): filepath.Join(dir, "product"), filepath.Join(s.folder("real"), imageFile): filepath.Join(dir, imageFile)}
	if full := filepath.Join(s.folder("real"), slimEngine); exists(full) {
		links[full] = filepath.Join(dir, slimEngine)
	}
	for from, to := range links {
		os.Remove(to)
		if err := os.Link(from, to); err != nil {
			return "", fmt.Errorf("bench: %w", err)
		}
	}
	return binary, program(binary)
}

// clean ends what an earlier run left.
func (s *Stage) clean(ctx context.Context) error {
	if err := lab.Down(ctx, s.LabDir()); err != nil && !errors.Is(err, lab.ErrNoLab) {
		return err
	}
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for _, e := range entries {
		if e.Name() != "lock" {
			if err := os.RemoveAll(filepath.Join(s.Dir, e.Name())); err != nil {
				return fmt.Errorf("bench: %w", err)
			}
		}
	}
	return nil
}

// Close ends the lab if there is one and removes the folder. It works after ctx has ended, too.
func (s *Stage) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err := s.clean(ctx)
	s.lock.Close()
	if err == nil {
		os.RemoveAll(s.Dir)
	}
	return err
}

// CopyFile copies content and mode.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("bench: copy %s: %w", filepath.Base(from), err)
	}
	return nil
}

// CopySelf puts this very program at path.
func CopySelf(path string) error { return copyFile("/proc/self/exe", path) }

// OwnCopy writes a program that gives each device a copy of the product on a disk
// of its own, as separate machines have it: devices of a lab share one file, and
// with it the memory of its pages, which would flatter every PSS.
func OwnCopy(path string) error {
	return os.WriteFile(path, []byte(`#!/bin/sh
own=/var/lib/product/rivulet
if [ "$1" = run ] && [ ! -e "$own" ]; then
	mkdir -p /var/lib/product && cp /opt/rivulet/product "$own.part" && mv "$own.part" "$own"
fi
[ -e "$own" ] || { echo "the copy of the product is not there yet" >&2; exit 1; }
exec "$own" "$@"
`), 0o755)
}
