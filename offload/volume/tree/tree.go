// Package tree carries the files of a volume from one device to another, and tells
// whether two trees of files are the same.
//
//	Pack ──a stream (tar)──▶ Unpack        Sum here == Sum there
//
// What is carried: folders, files with their holes, hard and symbolic links, FIFOs;
// owners, modes, times of change, extended attributes that belong to users (user.*, POSIX
// ACLs). Sockets are left out: who listens makes them anew. Device files are refused.
//
// Pack and Sum read below the folder, Unpack alone writes there; none of them follows
// a link out of it, whatever the stream or the folder says (os.Root). Nothing is kept:
// what was cut off is unpacked again from the beginning into a folder that Clear has
// emptied. Unpack returns after everything is on the disk.
package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Total is how much a tree holds.
type Total struct {
	// Files counts everything but the folder itself; Bytes is the data of files, holes
	// left out.
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Sum is a Total with a digest over all that is carried.
type Sum struct {
	Total
	Digest string `json:"digest"`
}

// walk calls f for everything below the folder in a fixed order, the folder itself,
// ".", first. Sockets are left out.
func walk(root *os.Root, f func(path string, fi fs.FileInfo) error) error {
	fi, err := root.Lstat(".")
	if err != nil {
		return err
	}
	return walkFrom(root, ".", fi, f)
}

func walkFrom(root *os.Root, path string, fi fs.FileInfo, f func(string, fs.FileInfo) error) error {
	switch fi.Mode().Type() {
	case fs.ModeSocket:
		return nil
	case 0, fs.ModeDir, fs.ModeSymlink, fs.ModeNamedPipe:
	default:
		return fmt.Errorf("%s is a device file, which is not carried to another device; remove it", path)
	}
	if err := f(path, fi); err != nil || !fi.IsDir() {
		return err
	}
	d, err := open(root, path)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		below := name
		if path != "." {
			below = path + "/" + name
		}
		fi, err := root.Lstat(below)
		if err != nil {
			return err
		}
		if err := walkFrom(root, below, fi, f); err != nil {
			return err
		}
	}
	return nil
}

// open opens for reading and never waits: a pod may have put a FIFO in a file's place.
func open(root *os.Root, path string) (*os.File, error) {
	return root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// links knows which paths are the same file.
type links map[[2]uint64]string

// first returns the path under which the file came by first, "" if it is this one.
func (l links) first(path string, fi fs.FileInfo) string {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink < 2 || !fi.Mode().IsRegular() {
		return ""
	}
	key := [2]uint64{uint64(st.Dev), st.Ino}
	if first, ok := l[key]; ok {
		return first
	}
	l[key] = path
	return ""
}

// carried reports whether an extended attribute belongs to the files' owner. Others
// (security.*, trusted.*) are the device's own.
func carried(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

// xattrs returns those of a file or folder that are carried; none where the file
// system has none.
func xattrs(f *os.File) (map[string]string, error) {
	buf := make([]byte, 64<<10) // the kernel's bound on the list and on a value
	n, err := unix.Flistxattr(int(f.Fd()), buf)
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
		if !carried(name) {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Fgetxattr(int(f.Fd()), name, value)
		if err != nil {
			return nil, err
		}
		out[name] = string(value[:n])
	}
	return out, nil
}

// Measure returns how much is in the folder.
func Measure(dir string) (t Total, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return t, err
	}
	defer root.Close()
	seen := links{}
	err = walk(root, func(path string, fi fs.FileInfo) error {
		if path != "." {
			t.Files++
		}
		if !fi.Mode().IsRegular() || seen.first(path, fi) != "" {
			return nil
		}
		t.Bytes += fi.Size()
		if st, ok := fi.Sys().(*syscall.Stat_t); ok { // holes take no room
			t.Bytes += min(0, st.Blocks*512-fi.Size())
		}
		return nil
	})
	return t, err
}

// Clear removes everything in the folder and leaves the folder itself.
func Clear(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	for _, name := range names {
		err = errors.Join(err, root.RemoveAll(name))
	}
	return err
}
