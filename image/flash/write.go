package flash

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

type Result struct {
	Device  string        `json:"device"`
	Model   string        `json:"model,omitempty"`
	Image   string        `json:"image"`
	Signed  bool          `json:"signed"`
	Size    int64         `json:"size"`
	Written int64         `json:"written"`
	Took    time.Duration `json:"took"`
	Config  bool          `json:"config"`           // rivulet.yaml was written
	Unused  int64         `json:"unused,omitempty"` // bytes at the disk's end that the image's partition table does not reach
}

// Fits returns why an image cannot be written to a disk, or nil.
func (m *Image) Fits(d Disk) error {
	switch {
	case d.Refused != "":
		return disk("%s", d.Refused)
	case d.Size < m.Size:
		return disk("%s has %s, the image wants %s; use a larger one", d.Path, Bytes(d.Size), Bytes(m.Size))
	}
	return nil
}

// Write writes a checked image to a disk, reads it back, gives the disk identities of its own, and writes files, of which
// there may be none, to its boot partition. The caller has to confirm with the user first.
func Write(ctx context.Context, m *Image, d Disk, files map[string][]byte, p Progress) (Result, error) {
	r := Result{Device: d.Path, Model: d.Model, Image: m.Path, Signed: m.Signed, Size: m.Size, Written: m.Content(), Unused: max(0, d.Size-m.Reach)}
	began := time.Now()
	if err := m.Fits(d); err != nil {
		return r, err
	}
	f, err := open(d, m.Path)
	if err != nil {
		return r, err
	}
	defer f.Close()
	fi, err := os.Stat(m.Path)
	if err != nil {
		return r, image("%w", err)
	}
	w := &writer{f: f, ranges: m.Ranges, sum: sha256.New()}
	if err := w.begin(m.Size, d.Size); err != nil {
		return r, err
	}
	if err := m.read(ctx, fi.Size(), Writing, p, w); err != nil {
		return r, again(err)
	}
	if w.at != m.Size || !bytes.Equal(w.sum.Sum(nil), m.hash) {
		return r, half("the image changed while it was written; flash again, from a copy that nobody writes to")
	}
	if err := w.end(); err != nil {
		return r, err
	}
	if err := w.compare(ctx, m.Content(), p); err != nil {
		return r, again(err)
	}
	if err := Identify(f); err != nil {
		return r, again(fmt.Errorf("the disk gets no identity of its own: %w", err))
	}
	if len(files) > 0 {
		if err := Place(f, files); err != nil {
			return r, err
		}
		r.Config = true
	}
	reread(f)
	r.Took = time.Since(began).Round(time.Millisecond)
	return r, nil
}

// again adds the consequence for the disk to the error that ended the writing.
func again(err error) error {
	if errors.Is(err, ErrHalf) {
		return err
	}
	return half("%w; flash again", err)
}

// open opens a disk exclusively: the kernel refuses while any process, in any container, has it or one of its
// partitions mounted.
func open(d Disk, from string) (*os.File, error) {
	flags := os.O_RDWR
	if !d.file {
		flags |= os.O_EXCL
	}
	f, err := os.OpenFile(d.Path, flags, 0)
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, disk("%w; use sudo", err)
	case errors.Is(err, unix.EBUSY):
		return nil, disk("%s is in use (mounted, perhaps elsewhere); unmount it first", d.Path)
	case errors.Is(err, unix.EROFS):
		return nil, disk("%s is read-only; look for the lock at the side of the card or its adapter", d.Path)
	case err != nil:
		return nil, disk("%w; see the disks there are: rivulet flash --list", err)
	}
	if err := same(f, d, from); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// same checks that the opened disk is the one that was described: cards are unplugged, and their names are reused.
func same(f *os.File, d Disk, from string) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size != d.Size {
		return disk("%s has %s now, and had %s; look whether the card is in: rivulet flash --list", d.Path, Bytes(size), Bytes(d.Size))
	}
	if d.file {
		here, err1 := f.Stat()
		there, err2 := os.Stat(from)
		if err1 != nil || err2 != nil || os.SameFile(here, there) {
			return disk("%s is the image itself; name the disk", d.Path)
		}
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return disk("%s is no disk any more; look whether the card is in: rivulet flash --list", d.Path)
	}
	if dev, err := deviceNumber(d.Path); err != nil || dev != d.dev {
		return disk("%s is another disk now; look at: rivulet flash --list", d.Path)
	}
	return nil
}

// head is written last, bytes: it has the partition table.
const head = 1 << 20

// writer writes the ranges of an image as it is read, and remembers what it wrote.
type writer struct {
	f      *os.File
	ranges []Range
	sum    hash.Hash // of the image, whole
	at     int64
	next   int
	first  []byte // of the image, up to head
	pieces []piece
	synced int64
}

// piece is a written part, for the comparison.
type piece struct {
	at, n int64
	sum   [sha256.Size]byte
}

// begin clears the old partition tables, so that an unfinished disk does not start, and the copy at its end does not
// restore an old one.
func (w *writer) begin(image, size int64) error {
	blank := make([]byte, head)
	for _, at := range []int64{0, image, size - head} {
		n := min(head, size-at)
		if at < 0 || n <= 0 || at > 0 && at < image {
			continue
		}
		if _, err := w.f.WriteAt(blank[:n], at); err != nil {
			return half("%w; the card is bad, or was pulled; use another", err)
		}
	}
	return w.sync()
}

// Write consumes the image; it writes content to the disk and skips the rest.
func (w *writer) Write(p []byte) (int, error) {
	w.sum.Write(p)
	for rest := p; len(rest) > 0; {
		if w.next == len(w.ranges) {
			w.at += int64(len(rest))
			break
		}
		r := w.ranges[w.next]
		if w.at < r.From {
			n := min(int64(len(rest)), r.From-w.at)
			rest, w.at = rest[n:], w.at+n
			continue
		}
		n := min(int64(len(rest)), r.To-w.at)
		if err := w.put(rest[:n]); err != nil {
			return 0, err
		}
		rest = rest[n:]
		if w.at == r.To {
			w.next++
		}
	}
	return len(p), nil
}

func (w *writer) put(p []byte) error {
	if w.at < head { // written last
		n := min(int64(len(p)), head-w.at)
		if w.first == nil {
			w.first = make([]byte, head)
		}
		copy(w.first[w.at:], p[:n])
		w.at, p = w.at+n, p[n:]
	}
	if len(p) == 0 {
		return nil
	}
	if _, err := w.f.WriteAt(p, w.at); err != nil {
		return half("writing at %s: %w; the card is bad, or was pulled; use another", Bytes(w.at), err)
	}
	w.pieces = append(w.pieces, piece{w.at, int64(len(p)), sha256.Sum256(p)})
	w.at += int64(len(p))
	// So that progress is that of the disk and not of memory, and a stop takes effect at once.
	if w.at-w.synced >= 16*chunk {
		w.synced = w.at
		return w.sync()
	}
	return nil
}

// end writes the head, after everything else is on the disk.
func (w *writer) end() error {
	if err := w.sync(); err != nil {
		return err
	}
	first := w.first[:min(int64(len(w.first)), w.at)]
	if len(first) == 0 {
		return nil
	}
	if _, err := w.f.WriteAt(first, 0); err != nil {
		return half("%w; the card is bad, or was pulled; use another", err)
	}
	w.pieces = append(w.pieces, piece{0, int64(len(first)), sha256.Sum256(first)})
	return w.sync()
}

func (w *writer) sync() error {
	if err := w.f.Sync(); err != nil {
		return half("%w; the card is bad, or was pulled; use another", err)
	}
	return nil
}

// compare reads back what was written, from the disk and not from memory.
func (w *writer) compare(ctx context.Context, of int64, p Progress) error {
	Forget(w.f)
	buf := make([]byte, chunk)
	done := int64(0)
	for _, x := range w.pieces {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := w.f.ReadAt(buf[:x.n], x.at); err != nil {
			return half("reading back at %s: %w; the card is bad, or was pulled; use another", Bytes(x.at), err)
		}
		if sha256.Sum256(buf[:x.n]) != x.sum {
			return half("what is read back at %s is not what was written; the card is bad, or smaller than it says; use another", Bytes(x.at))
		}
		done += x.n
		p(Reading, min(done, of), of)
	}
	return nil
}

// Forget drops the kernel's cache of a disk, so that reads come from the disk.
func Forget(f *os.File) {
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	_ = unix.IoctlSetInt(int(f.Fd()), unix.BLKFLSBUF, 0)
}

// reread requests that the kernel read the new partition table, which may fail.
func reread(f *os.File) {
	_ = unix.IoctlSetInt(int(f.Fd()), unix.BLKRRPART, 0)
}
