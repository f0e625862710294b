package tree

import (
	"archive/tar"
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

// ErrNoRoom says that the disk would be too full.
var ErrNoRoom = errors.New("there is no room on the disk")

// spare is the part of the disk, one in spare, that stays free: a kubelet throws pods
// out of a node whose disk is fuller.
const spare = 20

// Fits returns ErrNoRoom if more bytes on the disk of dir would leave it too full.
func Fits(dir string, more int64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return err
	}
	block := int64(s.Bsize) //nolint:unconvert // of another size on 32-bit machines
	free, keep := int64(s.Bavail)*block, int64(s.Blocks)*block/spare
	if free-more < keep {
		return fmt.Errorf("%w: %d MiB are free, %d MiB have to stay so, and %d MiB are needed; free space on that device", ErrNoRoom, free>>20, keep>>20, more>>20)
	}
	return nil
}

// Unpack makes in the folder, which is empty, what Pack has written. It returns when
// it would survive a power cut.
func Unpack(dir string, r io.Reader) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	in := tar.NewReader(r)
	var folders []*tar.Header // their times change until everything is there
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		h.Name = path.Clean(h.Name)
		if err := unpackOne(dir, root, in, h); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if h.Typeflag == tar.TypeDir {
			folders = append(folders, h)
		}
	}
	for i := len(folders) - 1; i >= 0; i-- {
		if err := finish(root, folders[i]); err != nil {
			return fmt.Errorf("%s: %w", folders[i].Name, err)
		}
	}
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

func unpackOne(dir string, root *os.Root, in *tar.Reader, h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeDir:
		if h.Name == "." {
			return nil
		}
		return root.Mkdir(h.Name, 0o700)
	case tar.TypeReg:
		if err := unpackFile(dir, root, in, h); err != nil {
			return err
		}
		return finish(root, h)
	case tar.TypeLink:
		return root.Link(h.Linkname, h.Name)
	case tar.TypeSymlink:
		if err := root.Symlink(h.Linkname, h.Name); err != nil {
			return err
		}
		return root.Lchown(h.Name, h.Uid, h.Gid)
	case tar.TypeFifo:
		return fifo(root, h)
	}
	return fmt.Errorf("type %q is not carried", h.Typeflag)
}

func unpackFile(dir string, root *os.Root, in *tar.Reader, h *tar.Header) error {
	pieces, size := []extent{{0, h.Size}}, h.Size
	if v, ok := h.PAXRecords[recordSize]; ok {
		var err error
		if size, err = strconv.ParseInt(v, 10, 64); err != nil || size < 0 {
			return fmt.Errorf("size %q is none", v)
		}
		if pieces, err = read(h.PAXRecords[recordData], size); err != nil {
			return err
		}
	}
	f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	for _, p := range pieces {
		if err := writePiece(dir, f, in, p); err != nil {
			return err
		}
	}
	return f.Close()
}

// look is how often the disk's room is looked at while a file is written.
const look = 64 << 20

func writePiece(dir string, f *os.File, in io.Reader, p extent) error {
	to := io.NewOffsetWriter(f, p.at)
	for left := p.length; left > 0; {
		n := min(left, look)
		if err := Fits(dir, n); err != nil {
			return err
		}
		if _, err := io.CopyN(to, in, n); err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// read parses what written wrote; pieces follow one another inside the file.
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
			return nil, fmt.Errorf("piece %q is none", piece)
		}
		end = at + length
		out = append(out, extent{at, length})
	}
	return out, nil
}

func fifo(root *os.Root, h *tar.Header) error {
	parent, err := root.Open(path.Dir(h.Name))
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := unix.Mkfifoat(int(parent.Fd()), path.Base(h.Name), uint32(h.Mode&0o7777)); err != nil {
		return err
	}
	if err := root.Lchown(h.Name, h.Uid, h.Gid); err != nil {
		return err
	}
	return root.Chmod(h.Name, mode(h))
}

// finish gives a file or folder its owner, mode, attributes and time.
func finish(root *os.Root, h *tar.Header) error {
	if err := root.Lchown(h.Name, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := root.Chmod(h.Name, mode(h)); err != nil { // after the owner: that takes setuid away
		return err
	}
	f, err := open(root, h.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, recordXattr)
		if !ok || !carried(name) {
			continue
		}
		if err := unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0); err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return root.Chtimes(h.Name, h.ModTime, h.ModTime)
}

func mode(h *tar.Header) fs.FileMode {
	const special = fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	return h.FileInfo().Mode() & (fs.ModePerm | special)
}
