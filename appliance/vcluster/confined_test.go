package vcluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// seesItsOwn tries, with the root and the user of a virtual cluster's process, to read what is
// not its own: the secrets that root has of it, those of another virtual cluster, and files of
// the device, one of which everybody else may read.
func (d *device) seesItsOwn(t *testing.T, name string, pid int) {
	t.Helper()
	d.create(Spec{Name: "other", Sleep: DefaultSleep})
	defer func() { must(t, d.k.Delete(t.Context(), "other")) }()
	c, err := d.k.get(name)
	must(t, err)
	readable := filepath.Join(t.TempDir(), "readable")
	must(t, os.WriteFile(readable, []byte("of the device"), 0o644))
	must(t, os.WriteFile(filepath.Join(d.cfg.State, "device.key"), []byte("key of the device"), 0o600))

	secrets := map[string]string{readable: "of the device"} // content by path
	must(t, filepath.WalkDir(d.cfg.State, func(path string, e fs.DirEntry, err error) error {
		if err == nil && path == c.rootDir() {
			return fs.SkipDir
		}
		if err == nil && filepath.Ext(path) == ".key" {
			raw, err := os.ReadFile(path)
			secrets[path] = string(raw)
			return err
		}
		return err
	}))
	for _, want := range []string{"device.key", "vclusters/" + name + "/secret/server-ca.key", "vclusters/other/secret/client-ca.key", "vclusters/other/root/tls/apiserver.key"} {
		if secrets[filepath.Join(d.cfg.State, want)] == "" {
			t.Fatalf("there is no %s to look for", want)
		}
	}

	// By any name: nothing below its root is a copy.
	own := map[string]string{}
	must(t, filepath.WalkDir(c.rootDir(), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			raw, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) { // its database's, which come and go
				return nil
			}
			own[string(raw)] = path
			return err
		}
		return err
	}))
	for path, content := range secrets {
		if copied := own[content]; copied != "" {
			t.Errorf("%s has what is in %s", copied, path)
		}
	}

	must(t, as(pid, func() error {
		if err := access("/tls/apiserver.key", unix.O_RDONLY); err != nil {
			return fmt.Errorf("it cannot read its own key, so that the rest shows nothing: %w", err)
		}
		if err := access("/data/written", unix.O_CREAT|unix.O_WRONLY); err != nil {
			return fmt.Errorf("it cannot write its own data, so that the rest shows nothing: %w", err)
		}
		for path := range secrets {
			for _, way := range []string{path, "../../../../../../../.." + path} {
				if access(way, unix.O_RDONLY) == nil {
					t.Errorf("it reads %s", way)
				}
			}
		}
		for _, path := range []string{filepath.Dir(readable) + "/new", "/new", "/tls/new", "/tls/apiserver.key"} {
			if access(path, unix.O_CREAT|unix.O_WRONLY) == nil {
				t.Errorf("it writes %s", path)
			}
		}
		return nil
	}))
}

func access(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// as runs f in a thread that has the root, the user and the group of a process.
func as(pid int, f func() error) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	var uid, gid uintptr
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "Uid: %d", &uid)
		_, _ = fmt.Sscanf(line, "Gid: %d", &gid)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Chroot(fmt.Sprintf("/proc/%d/root", pid)), unix.Chdir("/"))
		// Of this thread alone, which the functions of package unix would not be.
		for _, call := range [][4]uintptr{{unix.SYS_SETGROUPS}, {unix.SYS_SETRESGID, gid, gid, gid}, {unix.SYS_SETRESUID, uid, uid, uid}} {
			if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
				err = errors.Join(err, errno)
			}
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}
