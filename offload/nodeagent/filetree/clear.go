package filetree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// flat is the depth to which folders are emptied in place. A deeper one is first moved to the volume's own folder: a
// tree may be a million folders deep, and a descriptor is open for each level.
const flat = 64

// Clear removes everything in the folder and keeps the folder itself. It follows no link.
func Clear(ctx context.Context, dir string) error {
	root, err := holdFolder(dir)
	if err != nil {
		return err
	}
	defer root.close()
	c := clearing{ctx: ctx, root: root}
	for {
		c.raised = 0
		if err := c.empty(root, 0); err != nil || c.raised == 0 {
			return err
		}
	}
}

type clearing struct {
	ctx    context.Context
	root   *Entry
	raised int
	serial int
}

// empty removes the content of a folder. It continues after errors.
func (c *clearing) empty(dir *Entry, depth int) error {
	d, err := dir.Open()
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		removed, err := c.pass(dir, d, depth)
		if err != nil || !removed {
			return err
		}
		if _, err := d.Seek(0, io.SeekStart); err != nil { // some were skipped because others were removed
			return err
		}
	}
}

// pass reads the folder once and reports whether it removed anything.
func (c *clearing) pass(dir *Entry, d *os.File, depth int) (removed bool, errs error) {
	for {
		if err := c.ctx.Err(); err != nil {
			return removed, err
		}
		names, err := d.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return removed, errs
		}
		if err != nil {
			return removed, err
		}
		for _, name := range names {
			err := c.remove(dir, name, depth)
			if c.ctx.Err() != nil {
				return removed, c.ctx.Err()
			}
			removed = removed || err == nil
			if errs == nil {
				errs = err
			}
		}
	}
}

func (c *clearing) remove(dir *Entry, name string, depth int) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	gone := func(err error) error {
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	}
	err := unix.Unlinkat(dir.fd, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if unix.Unlinkat(dir.fd, name, unix.AT_REMOVEDIR) == nil { // an empty folder
		return nil
	}
	below, err2 := hold(dir.fd, name, name)
	if err2 != nil || below.Type() != unix.S_IFDIR {
		if err2 == nil {
			below.close()
		}
		return gone(err)
	}
	defer below.close()
	if depth >= flat {
		return c.raise(dir, name)
	}
	if err := c.empty(below, depth+1); err != nil {
		return err
	}
	return gone(unix.Unlinkat(dir.fd, name, unix.AT_REMOVEDIR))
}

// raise moves a folder to the volume's own.
func (c *clearing) raise(dir *Entry, name string) error {
	for {
		c.serial++
		err := unix.Renameat2(dir.fd, name, c.root.fd, fmt.Sprintf(".rivulet-removing-%d", c.serial), unix.RENAME_NOREPLACE)
		if err == nil {
			c.raised++
			return nil
		}
		if !errors.Is(err, unix.EEXIST) {
			return &fs.PathError{Op: "remove", Path: name, Err: err}
		}
	}
}
