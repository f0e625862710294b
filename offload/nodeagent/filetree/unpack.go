package filetree

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxHeader bounds the bytes before a file's data in a stream: names, attributes, pieces.
	maxHeader = 768 << 10
	// maxOpen bounds the attributes of incomplete folders, in bytes.
	maxOpen = 4 << 20
	// checkEvery is after how many written bytes the free space is checked.
	checkEvery = 64 << 20
)

// Unpack writes the output of Pack into the folder, which is empty. When it returns, the result would survive a power
// cut.
func Unpack(ctx context.Context, dir string, b Bounds, r io.Reader) error {
	root, err := holdFolder(dir)
	if err != nil {
		return err
	}
	defer root.close()
	u := &unpacker{ctx: ctx, dir: dir, root: root, left: b, unseen: checkEvery}
	defer u.close()
	heads := &metered{r: during{ctx, r}}
	in := tar.NewReader(heads)
	for {
		heads.allow(maxHeader)
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		heads.allow(h.Size + 1024)
		h.Name = path.Clean(h.Name)
		if err := u.one(in, h); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	// Read to the end, so that the sender can finish.
	heads.allow(1)
	if n, err := io.Copy(io.Discard, heads); n > 0 {
		return errors.New("there is something behind the files")
	} else if err != nil {
		return err
	}
	if err := u.leave(""); err != nil {
		return err
	}
	d, err := root.Open()
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

// metered bounds what is read until allow adds more.
type metered struct {
	r    io.Reader
	left int64
}

func (m *metered) allow(n int64) { m.left = n }

func (m *metered) Read(p []byte) (int, error) {
	if m.left <= 0 {
		return 0, fmt.Errorf("%w: the names or attributes of a file are larger than %d KiB", ErrTooLarge, maxHeader>>10)
	}
	n, err := m.r.Read(p[:min(int64(len(p)), m.left)])
	m.left -= int64(n)
	return n, err
}

// unpacker fills a folder. In a stream each folder is directly before its content, so that only those from the volume's
// own to the present one are open.
type unpacker struct {
	ctx     context.Context
	dir     string
	root    *Entry
	left    Bounds
	folders []folder
	held    int   // bytes of attributes of folders
	unseen  int64 // bytes written since the last check of free space
}

// folder is an incomplete one: entries made in it change its time, and its default ACL must not apply to them.
type folder struct {
	path  string
	entry *Entry
	like  *tar.Header
	held  int
}

// one creates the entry of a header.
func (u *unpacker) one(in io.Reader, h *tar.Header) error {
	if err := u.ctx.Err(); err != nil {
		return err
	}
	if !fs.ValidPath(h.Name) || strings.ContainsRune(h.Name, 0) || len(h.Name) > maxPath {
		return errors.New("this name is not below the folder")
	}
	size, pieces, err := pieces(h)
	if err == nil {
		err = u.left.count(size, h.Size)
	}
	if err == nil {
		err = u.room(4096) // an inode, about
	}
	if err != nil {
		return err
	}
	if h.Name == "." {
		if h.Typeflag != tar.TypeDir || len(u.folders) > 0 {
			return errors.New("the folder itself comes first, or not at all")
		}
		return u.enter(".", u.root, h)
	}
	parent, name := path.Dir(h.Name), path.Base(h.Name)
	if err := u.leave(parent); err != nil {
		return err
	}
	at := u.root
	if n := len(u.folders); n > 0 && u.folders[n-1].path == parent {
		at = u.folders[n-1].entry
	} else if parent != "." {
		return errors.New("its folder does not come directly before it")
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.folder(at, name, h)
	case tar.TypeReg:
		return u.file(at, name, in, h, size, pieces)
	case tar.TypeLink:
		return u.link(at, name, h)
	case tar.TypeSymlink:
		if err := unix.Symlinkat(h.Linkname, at.fd, name); err != nil {
			return err
		}
		return unix.Fchownat(at.fd, name, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)
	case tar.TypeFifo:
		return u.fifo(at, name, h)
	}
	return fmt.Errorf("type %q is not carried", h.Typeflag)
}

// leave completes the folders that are not above or equal to path; all of them for "".
func (u *unpacker) leave(to string) error {
	for n := len(u.folders); n > 0; n = len(u.folders) {
		f := u.folders[n-1]
		if to != "" && (f.path == "." || f.path == to || strings.HasPrefix(to, f.path+"/")) {
			return nil
		}
		d, err := f.entry.Open()
		if err == nil {
			err = finish(d, f.like)
			d.Close()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
		u.drop()
	}
	return nil
}

func (u *unpacker) drop() {
	n := len(u.folders) - 1
	if u.folders[n].entry != u.root {
		u.folders[n].entry.close()
	}
	u.held -= u.folders[n].held
	u.folders = u.folders[:n]
}

func (u *unpacker) close() {
	for len(u.folders) > 0 {
		u.drop()
	}
}

// enter keeps a folder open; it takes over the entry, also with an error.
func (u *unpacker) enter(path string, e *Entry, h *tar.Header) error {
	like, held := &tar.Header{Typeflag: h.Typeflag, Name: h.Name, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime, PAXRecords: map[string]string{}}, 0
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, recordXattr); ok && transferred(name) {
			like.PAXRecords[strings.Clone(key)] = strings.Clone(value)
			held += len(key) + len(value)
		}
	}
	u.held += held
	u.folders = append(u.folders, folder{path, e, like, held})
	if u.held > maxOpen || len(u.folders) > maxDepth+1 {
		return fmt.Errorf("%w: folders are too deep, or have too large attributes", ErrTooLarge)
	}
	return nil
}

func (u *unpacker) folder(in *Entry, name string, h *tar.Header) error {
	if err := unix.Mkdirat(in.fd, name, 0o700); err != nil {
		return err
	}
	e, err := hold(in.fd, name, h.Name)
	if err != nil {
		return err
	}
	if e.Type() != unix.S_IFDIR {
		e.close()
		return unix.ENOTDIR
	}
	return u.enter(h.Name, e, h)
}

func (u *unpacker) file(dir *Entry, name string, in io.Reader, h *tar.Header, size int64, pieces []extent) error {
	fd, err := unix.Openat(dir.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), h.Name)
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	for _, p := range pieces {
		if err := u.piece(f, in, p); err != nil {
			return err
		}
	}
	if err := finish(f, h); err != nil {
		return err
	}
	return f.Close()
}

func (u *unpacker) piece(f *os.File, in io.Reader, p extent) error {
	to := io.NewOffsetWriter(f, p.at)
	for left := p.length; left > 0; {
		n := min(left, checkEvery)
		if err := u.room(n); err != nil {
			return err
		}
		if _, err := io.CopyN(to, in, n); err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// room checks the free space before a large piece, and regularly for small ones.
func (u *unpacker) room(n int64) error {
	if u.unseen += n; u.unseen < 1<<20 {
		return nil
	}
	u.unseen = 0
	return Fits(u.dir, n)
}

// link makes a hard link to a file of the stream, resolved from the volume's folder.
func (u *unpacker) link(in *Entry, name string, h *tar.Header) error {
	to := path.Clean(h.Linkname)
	if !fs.ValidPath(to) || len(to) > maxPath {
		return errors.New("the link leads out of the folder")
	}
	at := u.root
	for part := range strings.SplitSeq(to, "/") {
		next, err := hold(at.fd, part, to)
		if at != u.root {
			at.close()
		}
		if err != nil {
			return err
		}
		at = next
	}
	defer at.close()
	if at.Type() != unix.S_IFREG {
		return errors.New("the link does not lead to a file")
	}
	return unix.Linkat(unix.AT_FDCWD, at.byDescriptor(), in.fd, name, unix.AT_SYMLINK_FOLLOW)
}

func (u *unpacker) fifo(in *Entry, name string, h *tar.Header) error {
	if err := unix.Mkfifoat(in.fd, name, 0o600); err != nil {
		return err
	}
	e, err := hold(in.fd, name, h.Name)
	if err != nil {
		return err
	}
	defer e.close()
	if e.Type() != unix.S_IFIFO {
		return errors.New("it is no FIFO any more")
	}
	if err := unix.Fchownat(e.fd, "", h.Uid, h.Gid, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	return os.Chmod(e.byDescriptor(), mode(h))
}

// pieces returns the size of a file and the location of its data.
func pieces(h *tar.Header) (size int64, out []extent, err error) {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") { // its holes would be read and written as zeros
			return 0, nil, errors.New("sparse files of other programs are not carried")
		}
	}
	text, ok := h.PAXRecords[recordSize]
	if h.Typeflag != tar.TypeReg || !ok {
		if h.Size == 0 {
			return 0, nil, nil
		}
		return h.Size, []extent{{0, h.Size}}, nil
	}
	if size, err = strconv.ParseInt(text, 10, 64); err != nil || size < 0 {
		return 0, nil, fmt.Errorf("size %q is none", text)
	}
	if out, err = read(h.PAXRecords[recordData], size); err != nil {
		return 0, nil, err
	}
	sent := int64(0)
	for _, p := range out {
		sent += p.length
	}
	if sent != h.Size {
		return 0, nil, fmt.Errorf("its pieces are %d bytes, and %d are sent", sent, h.Size)
	}
	return size, out, nil
}

// read parses the output of written; pieces are in order and inside the file.
func read(text string, size int64) ([]extent, error) {
	var out []extent
	end := int64(0)
	for piece := range strings.SplitSeq(text, ",") {
		if piece == "" {
			continue
		}
		a, l, _ := strings.Cut(piece, ":")
		at, err1 := strconv.ParseInt(a, 10, 64)
		length, err2 := strconv.ParseInt(l, 10, 64)
		if err1 != nil || err2 != nil || at < end || length < 0 || at > size || length > size-at {
			return nil, fmt.Errorf("piece %.40q is none", piece)
		}
		end = at + length
		out = append(out, extent{at, length})
	}
	return out, nil
}

// finish sets owner, mode, attributes and time of an open file or folder.
func finish(f *os.File, h *tar.Header) error {
	if err := f.Chown(h.Uid, h.Gid); err != nil {
		return err
	}
	if err := f.Chmod(mode(h)); err != nil { // after the owner, which clears setuid
		return err
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, recordXattr)
		if !ok || !transferred(name) {
			continue
		}
		if err := unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0); err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	then := unix.NsecToTimespec(h.ModTime.UnixNano())
	return unix.UtimesNanoAt(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), []unix.Timespec{then, then}, 0)
}

func mode(h *tar.Header) fs.FileMode {
	const special = fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	return h.FileInfo().Mode() & (fs.ModePerm | special)
}
