package filetree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxDepth bounds the folders that are open at once, maxPath the names in headers.
	maxDepth, maxPath = 256, 4096
	// maxNames bounds the memory for names and links of one walk, in bytes: about 300,000 names of 60 bytes in one
	// folder.
	maxNames = 32 << 20
	// perName is the memory of a name in addition to its bytes.
	perName = 48
	// maxXattrs bounds the attributes of one file, in bytes.
	maxXattrs = 128 << 10
)

// Entry is one file, folder or link, held by a descriptor, which is independent of its name. It is valid during its
// visit.
type Entry struct {
	Path string // below the folder; "." is the folder itself
	Stat unix.Stat_t
	fd   int // O_PATH
}

// Type is the entry's S_IFMT.
func (e *Entry) Type() uint32 { return e.Stat.Mode & unix.S_IFMT }

// Open opens a regular file or folder for reading. Other types are refused before the kernel acts on them: opening a
// device or a FIFO may have effects, or block.
func (e *Entry) Open() (*os.File, error) {
	fd, err := -1, error(unix.EINVAL)
	switch e.Type() {
	case unix.S_IFREG:
		fd, err = unix.Open(e.byDescriptor(), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	case unix.S_IFDIR:
		fd, err = unix.Openat(e.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: e.Path, Err: err}
	}
	return os.NewFile(uintptr(fd), e.Path), nil
}

// byDescriptor is a path to the held file and nothing else.
func (e *Entry) byDescriptor() string { return "/proc/self/fd/" + strconv.Itoa(e.fd) }

func (e *Entry) Readlink() (string, error) {
	buf := make([]byte, maxPath+1)
	n, err := unix.Readlinkat(e.fd, "", buf)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: e.Path, Err: err}
	}
	return string(buf[:n]), nil
}

// Info is the entry as an fs.FileInfo.
func (e *Entry) Info() (fs.FileInfo, error) {
	f := os.NewFile(uintptr(dup(e.fd)), path.Base(e.Path))
	if f == nil {
		return nil, &fs.PathError{Op: "stat", Path: e.Path, Err: unix.EMFILE}
	}
	defer f.Close()
	return f.Stat()
}

func dup(fd int) int {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return n
}

// hold opens one name in a folder without following it and without effect.
func hold(dir int, name, path string) (*Entry, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	e := &Entry{Path: path, fd: fd}
	if err := unix.Fstat(fd, &e.Stat); err != nil {
		e.close()
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return e, nil
}

func (e *Entry) close() { _ = unix.Close(e.fd) }

// holdFolder opens the folder of a volume. A tenant cannot change its location.
func holdFolder(dir string) (*Entry, error) {
	e, err := hold(unix.AT_FDCWD, dir, ".")
	if err == nil && e.Type() != unix.S_IFDIR {
		e.close()
		err = &fs.PathError{Op: "open", Path: dir, Err: unix.ENOTDIR}
	}
	return e, err
}

// Visit calls f for everything below a folder in a fixed order, the folder itself first, of any type. It ends with ctx.
// What vanishes before it is opened is left out.
func Visit(ctx context.Context, dir string, f func(*Entry) error) error {
	root, err := holdFolder(dir)
	if err != nil {
		return err
	}
	defer root.close()
	w := &walker{ctx: ctx, f: f}
	return w.walk(root, 0)
}

type walker struct {
	ctx   context.Context
	f     func(*Entry) error
	names int64 // bytes in memory
}

func (w *walker) walk(e *Entry, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if depth > maxDepth || len(e.Path) > maxPath {
		return fmt.Errorf("%.80s… is more than %d folders or %d bytes deep; pack that folder into one file", e.Path, maxDepth, maxPath)
	}
	if err := w.f(e); err != nil || e.Type() != unix.S_IFDIR {
		return err
	}
	before := w.names
	defer func() { w.names = before }()
	names, err := w.list(e)
	if err != nil {
		return err
	}
	for _, name := range names {
		below := name
		if e.Path != "." {
			below = e.Path + "/" + name
		}
		child, err := hold(e.fd, name, below)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = w.walk(child, depth+1)
		child.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// list returns the names in a folder in order.
func (w *walker) list(e *Entry) (names []string, err error) {
	d, err := e.Open()
	if err != nil {
		return nil, err
	}
	defer d.Close()
	for {
		more, err := d.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return slices.Compact(names), nil // a damaged file system may give one twice
		}
		if err == nil {
			err = w.ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		for _, name := range more {
			w.names += int64(len(name)) + perName
		}
		if w.names > maxNames {
			return nil, fmt.Errorf("%s has too many files; spread them over folders, or pack them into one file", e.Path)
		}
		names = append(names, more...)
	}
}

// carrying visits what is transferred, within bounds: files, folders, symbolic links and FIFOs. Sockets are left out,
// device files refused. first is the path at which a file was visited before, "" if it is new.
func carrying(ctx context.Context, dir string, b Bounds, f func(e *Entry, first string) error) error {
	seen, held := map[[2]uint64]string{}, int64(0)
	return Visit(ctx, dir, func(e *Entry) error {
		switch e.Type() {
		case unix.S_IFSOCK:
			return nil
		case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO:
		default:
			return fmt.Errorf("%s is a device file, which is not carried to another device; remove it", e.Path)
		}
		first := ""
		if e.Type() == unix.S_IFREG {
			key := [2]uint64{uint64(e.Stat.Dev), e.Stat.Ino} //nolint:unconvert // of another size elsewhere
			if first = seen[key]; first == "" && e.Stat.Nlink > 1 {
				if held += int64(len(e.Path)) + 2*perName; held > maxNames {
					return errors.New("too many files have hard links; pack them into one file")
				}
				seen[key] = e.Path
			}
		}
		size := int64(0)
		if e.Type() == unix.S_IFREG && first == "" {
			size = e.Stat.Size
		}
		if err := b.count(size, 0); err != nil {
			return fmt.Errorf("%s: %w", e.Path, err)
		}
		if err := f(e, first); err != nil {
			return fmt.Errorf("%s: %w", e.Path, err)
		}
		return nil
	})
}

// transferred reports whether an extended attribute belongs to the files' owner. Others (security.*, trusted.*) are the
// device's own.
func transferred(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

// xattrs returns the transferred ones of a file or folder; none if the file system has none.
func xattrs(f *os.File) (map[string]string, error) {
	buf := make([]byte, 64<<10) // the kernel's bound on the list and on a value
	n, err := unix.Flistxattr(int(f.Fd()), buf)
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out, all := map[string]string{}, 0
	names := string(buf[:n])
	for name := range strings.SplitSeq(strings.TrimRight(names, "\x00"), "\x00") {
		if !transferred(name) {
			continue
		}
		n, err := unix.Fgetxattr(int(f.Fd()), name, buf)
		if err != nil {
			return nil, err
		}
		if all += len(name) + n; all > maxXattrs {
			return nil, fmt.Errorf("its extended attributes are larger than %d KiB; remove some", maxXattrs>>10)
		}
		out[name] = string(buf[:n])
	}
	return out, nil
}
