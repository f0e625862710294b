package filetree

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	disk, err := DiskOf(dir)
	if err != nil {
		return Bounds{}, err
	}
	return Bounds{Entries: Entries(size), Logical: max(size, disk.Size), Data: disk.Size}, nil
}

// Entries is how many files, folders and links a volume of that size, bytes, may have.
func Entries(size int64) int64 { return 100_000 + size>>10 }

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
	d, err := DiskOf(dir)
	if err != nil {
		return err
	}
	after := d
	after.Free -= more
	switch {
	case !after.Lacks(spare):
		return nil
	case after.Free < d.Size/spare:
		return fmt.Errorf("%w: %d MiB are free, %d MiB have to stay so, and %d MiB are needed; free space on that device", ErrNoRoom, d.Free>>20, d.Size/spare>>20, more>>20)
	}
	return fmt.Errorf("%w: %d of %d inodes are free; remove small files on that device", ErrNoRoom, d.InodesFree, d.Inodes)
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
