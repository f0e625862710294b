package filetree

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// ErrNoRoom: the disk would become too full. ErrTooLarge: a tree is beyond its Bounds.
var (
	ErrNoRoom   = errors.New("there is no room on the disk")
	ErrTooLarge = errors.New("the volume is too large")
)

// Bounds limit a tree. The zero value allows nothing.
type Bounds struct {
	// Entries counts files, folders and links.
	Entries int64
	// Logical is the size of all files together, holes included, in bytes: none of them could be filled beyond it.
	Logical int64
	// Data is the number of bytes that may be written, without holes.
	Data int64
}

// BoundsOf are those of a volume of that size in a folder: as many entries as small files fill it, and the size of the
// disk.
func BoundsOf(dir string, size int64) (Bounds, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Bounds{}, err
	}
	disk := int64(s.Blocks) * int64(s.Bsize) //nolint:unconvert // of another size on 32-bit machines
	return Bounds{Entries: 100_000 + size>>10, Logical: max(size, disk), Data: disk}, nil
}

// count subtracts one entry from the bounds.
func (b *Bounds) count(size, data int64) error {
	b.Entries--
	b.Logical -= min(size, b.Logical+1)
	b.Data -= min(data, b.Data+1)
	switch {
	case b.Entries < 0:
		return fmt.Errorf("%w: it has more files than are carried for its size; ask for more (requests.storage of the claim), or pack them into one file", ErrTooLarge)
	case b.Logical < 0:
		return fmt.Errorf("%w: its files are larger than the disk, even if most of that are holes; make them smaller (truncate)", ErrTooLarge)
	case b.Data < 0:
		return fmt.Errorf("%w: the claim asks for less than what is in it; raise requests.storage of the claim", ErrTooLarge)
	}
	return nil
}

// One part in spare of the disk stays free: a kubelet evicts pods from a node with a fuller disk.
const spare = 20

// Fits returns ErrNoRoom if more bytes on the disk of dir would make it too full, or if it has too few inodes left.
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
	if s.Files > 0 && s.Ffree < s.Files/spare { // some file systems do not count inodes
		return fmt.Errorf("%w: %d of %d inodes are free; remove small files on that device", ErrNoRoom, s.Ffree, s.Files)
	}
	return nil
}

// during ends reading with ctx.
type during struct {
	ctx context.Context
	r   io.Reader
}

func (d during) Read(p []byte) (int, error) {
	if err := d.ctx.Err(); err != nil {
		return 0, err
	}
	return d.r.Read(p)
}
