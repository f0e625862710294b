package tree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Records of our own in a file's header: a file with holes is sent without them. Its
// size in the archive is that of its data.
const (
	recordSize  = "RIVULET.size"
	recordData  = "RIVULET.data" // offset:length,…
	recordXattr = "SCHILY.xattr."
	// maxExtents keeps a header far below what readers of tar take (1 MiB); a file in
	// more pieces is sent whole.
	maxExtents = 10_000
)

// extent is a piece of a file that holds data.
type extent struct{ at, length int64 }

// Pack writes the folder's tree to w.
func Pack(dir string, w io.Writer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	out, seen := tar.NewWriter(w), links{}
	err = walk(root, func(path string, fi fs.FileInfo) error {
		if err := packOne(root, out, seen, path, fi); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
	return errors.Join(err, out.Close())
}

func packOne(root *os.Root, out *tar.Writer, seen links, path string, fi fs.FileInfo) error {
	target := ""
	if fi.Mode().Type() == fs.ModeSymlink {
		var err error
		if target, err = root.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(fi, target)
	if err != nil {
		return err
	}
	h.Name, h.Format, h.PAXRecords = path, tar.FormatPAX, map[string]string{}
	h.Uname, h.Gname, h.AccessTime, h.ChangeTime = "", "", time.Time{}, time.Time{}
	if fi.IsDir() {
		h.Name += "/"
	}
	if first := seen.first(path, fi); first != "" {
		h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		return out.WriteHeader(h)
	}
	if !fi.IsDir() && !fi.Mode().IsRegular() {
		return out.WriteHeader(h)
	}
	f, err := open(root, path)
	if err != nil {
		return err
	}
	defer f.Close()
	values, err := xattrs(f)
	if err != nil {
		return err
	}
	for name, value := range values {
		h.PAXRecords[recordXattr+name] = value
	}
	if fi.IsDir() {
		return out.WriteHeader(h)
	}
	pieces := extents(f, fi.Size())
	if len(pieces) != 1 || pieces[0].length != fi.Size() {
		h.PAXRecords[recordSize], h.PAXRecords[recordData] = strconv.FormatInt(fi.Size(), 10), written(pieces)
		h.Size = 0
		for _, p := range pieces {
			h.Size += p.length
		}
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	for _, p := range pieces {
		if _, err := io.Copy(out, io.NewSectionReader(f, p.at, p.length)); err != nil {
			return err
		}
	}
	return nil
}

// extents returns where a file holds data; all of it where the file system cannot
// say, or where that are too many pieces.
func extents(f *os.File, size int64) []extent {
	whole := []extent{{0, size}}
	if size == 0 {
		return whole
	}
	var out []extent
	for at := int64(0); at < size; {
		begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // a hole up to the end
			break
		}
		if err != nil || len(out) == maxExtents {
			return whole
		}
		end, err := unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return whole
		}
		end = min(end, size)
		out = append(out, extent{begin, end - begin})
		at = end
	}
	return out
}

func written(pieces []extent) string {
	var b strings.Builder
	for i, p := range pieces {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d:%d", p.at, p.length)
	}
	return b.String()
}
