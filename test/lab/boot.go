package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// makeLAN starts the holder of the LAN's network namespace and makes the bridge in there.
func (l *Lab) makeLAN(ctx context.Context, s *state, hs []hierarchy) error {
	c, err := spawn(nameLAN, filepath.Join(l.dir, "lan.log"), unix.CLONE_NEWNET)
	if err != nil {
		return err
	}
	defer c.abandon()
	s.LAN = c.Proc
	if err := s.save(l.dir); err != nil {
		return err
	}
	if err := makeCgroups(hs, s.ID, "lan"); err != nil {
		return err
	}
	if err := joinCgroups(hs, s.ID, "lan", "", c.PID); err != nil {
		return err
	}
	if err := makeBridge(c.Proc); err != nil {
		return err
	}
	return c.proceed(ctx, nil)
}

// boot powers a device on: namespaces, cgroups, cable, mounts, init. Rivulet is not started yet.
func (l *Lab) boot(ctx context.Context, s *state, d *deviceState, hs []hierarchy) (err error) {
	if err := os.MkdirAll(l.disk(d.Name), 0o755); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	c, err := spawn(nameInit, filepath.Join(l.disk(d.Name), "init.log"),
		unix.CLONE_NEWNET|unix.CLONE_NEWNS|unix.CLONE_NEWPID|unix.CLONE_NEWUTS|unix.CLONE_NEWIPC)
	if err != nil {
		return err
	}
	defer func() {
		c.abandon()
		if err != nil {
			err = errors.Join(err, c.kill(ctx))
		}
	}()
	d.Init = c.Proc
	if err := s.save(l.dir); err != nil {
		return err
	}
	// A power cut leaves the device's cgroups, with empty ones of its containers below.
	for _, lab := range s.Cgroups {
		if err := removeCgroup(ctx, filepath.Join(lab, d.Name)); err != nil {
			return err
		}
	}
	if err := makeCgroups(hs, s.ID, d.Name); err != nil {
		return err
	}
	if err := joinCgroups(hs, s.ID, d.Name, "", c.PID); err != nil {
		return err
	}
	if err := plugIn(s.LAN, d); err != nil {
		return err
	}
	if err := applyCables(s); err != nil {
		return err
	}
	return c.proceed(ctx, spec{Name: d.Name, Disk: l.disk(d.Name), Bin: filepath.Join(l.dir, "bin"), Cgroups: hs})
}

// installBinary puts a copy where the devices see it as /opt/rivulet-lab/rivulet. A build that replaces the original
// does not change what runs; the next start takes the new one. Every version keeps its own folder, so that the path a
// running process has of itself stays right.
func installBinary(from, dir string) error {
	fi, err := os.Stat(from)
	if err != nil {
		return fmt.Errorf("lab: %w: build it with `make build`", err)
	}
	version := fmt.Sprintf("%x-%x", fi.ModTime().UnixNano(), fi.Size())
	to := filepath.Join(dir, version, "rivulet")
	if _, err := os.Stat(to); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
		if err := copyProgram(from, to); err != nil {
			return fmt.Errorf("lab: copy %s: %w", from, err)
		}
	}
	link := filepath.Join(dir, "rivulet")
	os.Remove(link + ".new")
	if err := errors.Join(os.Symlink(filepath.Join(version, "rivulet"), link+".new"), os.Rename(link+".new", link)); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	return nil
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return errors.Join(out.Close(), os.Rename(to+".new", to))
}
