package filetree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Sum is a Total with a digest of everything that is transferred.
type Sum struct {
	Total
	Digest string `json:"digest"`
}

const block = 4096

// line is the relevant part of one entry. Trees with the same lines are equal, whatever the layout of their data on
// disk.
type line struct {
	Path   string            `json:"p"`
	Mode   fs.FileMode       `json:"m"`
	UID    uint32            `json:"u"`
	GID    uint32            `json:"g"`
	Size   int64             `json:"s,omitempty"`
	Time   int64             `json:"t,omitempty"` // of files, nanoseconds
	Link   string            `json:"l,omitempty"` // where a link leads, hard or symbolic
	Xattrs map[string]string `json:"x,omitempty"`
	Data   []byte            `json:"d,omitempty"` // SHA-256
}

// SumUp reads everything in the folder.
func SumUp(ctx context.Context, dir string, b Bounds) (s Sum, err error) {
	all := sha256.New()
	lines := json.NewEncoder(all) // map keys are sorted
	err = carrying(ctx, dir, b, func(e *Entry, first string) error {
		l, err := describe(ctx, e, first)
		if err != nil {
			return err
		}
		if e.Path != "." {
			s.Files++
		}
		if len(l.Data) > 0 {
			s.Bytes += l.Size
		}
		return lines.Encode(l)
	})
	s.Digest = hex.EncodeToString(all.Sum(nil))
	return s, err
}

func describe(ctx context.Context, e *Entry, first string) (l line, err error) {
	fi, err := e.Info()
	if err != nil {
		return l, err
	}
	l = line{Path: e.Path, Mode: fi.Mode(), UID: e.Stat.Uid, GID: e.Stat.Gid}
	switch e.Type() {
	case unix.S_IFLNK:
		l.Link, err = e.Readlink()
		return l, err
	case unix.S_IFIFO:
		return l, nil
	}
	if l.Link = first; first != "" {
		return l, nil
	}
	f, err := e.Open()
	if err != nil {
		return l, err
	}
	defer f.Close()
	if l.Xattrs, err = xattrs(f); err != nil || e.Type() == unix.S_IFDIR {
		return l, err
	}
	data := sha256.New()
	err = hashData(ctx, data, f, e.Stat.Size)
	l.Size, l.Time, l.Data = e.Stat.Size, e.Stat.Mtim.Nano(), data.Sum(nil)
	return l, err
}

// hashData hashes each block of a file that is not all zeros, after its number. So zeros on the disk and a hole are
// equal.
func hashData(ctx context.Context, to hash.Hash, f *os.File, size int64) error {
	buf, zeros, done := make([]byte, 64*block), make([]byte, block), int64(0)
	return eachExtent(ctx, f, size, func(e extent) error {
		// Whole blocks; those of the previous extent are not read again.
		at, end := max(e.at/block*block, done), min((e.end()+block-1)/block*block, size)
		for at < end {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := f.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
			if err != nil && (err != io.EOF || n == 0) {
				return err
			}
			for off := 0; off < n; off += block {
				part := buf[off:min(off+block, n)]
				if bytes.Equal(part, zeros[:len(part)]) {
					continue
				}
				var number [8]byte
				binary.BigEndian.PutUint64(number[:], uint64(at+int64(off))/block)
				to.Write(number[:]) // never fails
				to.Write(part)
			}
			at += int64(n)
		}
		done = max(done, end)
		return nil
	})
}
