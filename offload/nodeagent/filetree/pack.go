package filetree

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Rivulet's records in a file's header: a file with holes is sent without them. Its size in the archive is that of its
// data.
const (
	recordSize  = "RIVULET.size"
	recordData  = "RIVULET.data" // offset:length,…
	recordXattr = "SCHILY.xattr."
)

// Pack writes the folder's tree to w: each folder directly before its content.
func Pack(ctx context.Context, dir string, b Bounds, w io.Writer) error {
	out := tar.NewWriter(w)
	err := carrying(ctx, dir, b, func(e *Entry, first string) error { return packOne(ctx, out, e, first) })
	return errors.Join(err, out.Close())
}

func packOne(ctx context.Context, out *tar.Writer, e *Entry, first string) error {
	h, err := header(e)
	if err != nil {
		return err
	}
	switch e.Type() {
	case unix.S_IFDIR:
		h.Name += "/"
	case unix.S_IFLNK, unix.S_IFIFO:
		return out.WriteHeader(h)
	}
	if first != "" {
		h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		return out.WriteHeader(h)
	}
	f, err := e.Open()
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
	if e.Type() == unix.S_IFDIR {
		return out.WriteHeader(h)
	}
	size := e.Stat.Size
	pieces, err := extents(ctx, f, size)
	if err != nil {
		return err
	}
	if size > 0 && (len(pieces) != 1 || pieces[0].length != size) {
		h.PAXRecords[recordSize], h.PAXRecords[recordData] = strconv.FormatInt(size, 10), written(pieces)
		h.Size = 0
		for _, p := range pieces {
			h.Size += p.length
		}
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	for _, p := range pieces {
		if _, err := io.Copy(out, during{ctx, io.NewSectionReader(f, p.at, p.length)}); err != nil {
			return err
		}
	}
	return nil
}

func header(e *Entry) (*tar.Header, error) {
	target := ""
	fi, err := e.Info()
	if err == nil && e.Type() == unix.S_IFLNK {
		target, err = e.Readlink()
	}
	if err != nil {
		return nil, err
	}
	h, err := tar.FileInfoHeader(nameless{fi}, target)
	if err != nil {
		return nil, err
	}
	h.Name, h.Format, h.PAXRecords = e.Path, tar.FormatPAX, map[string]string{}
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	if e.Type() == unix.S_IFREG { // the state at the time when its extents are read
		h.Size = e.Stat.Size
	}
	return h, nil
}

// nameless prevents package tar from resolving owners, which it would cache for ever.
type nameless struct{ fs.FileInfo }

func (nameless) Uname() (string, error) { return "", nil }
func (nameless) Gname() (string, error) { return "", nil }

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
