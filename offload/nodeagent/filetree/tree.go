package filetree

import (
	"context"
	"fmt"
	"io"
)

// Tree are the files of one volume, on this device or on another one.
type Tree interface {
	Measure(ctx context.Context) (Total, error)
	// SumUp reads everything.
	SumUp(ctx context.Context) (Sum, error)
	// Pack writes the tree to w. After an error what was written is no tree.
	Pack(ctx context.Context, w io.Writer) error
	// Replace removes the files, writes those of a stream of Pack, of about size bytes, and returns the sum of the result.
	// Nothing reads files after it has returned.
	Replace(ctx context.Context, size int64, files io.Reader) (Sum, error)
}

// Folder is a Tree on this device.
type Folder struct {
	dir    string
	size   int64
	bounds Bounds
}

// OpenFolder returns the Tree of a volume of that size, bytes, in a folder.
func OpenFolder(dir string, size int64) (Folder, error) {
	bounds, err := BoundsOf(dir, size)
	return Folder{dir, size, bounds}, err
}

// Measure implements Tree.
func (f Folder) Measure(ctx context.Context) (Total, error) { return Measure(ctx, f.dir, f.bounds) }

// SumUp implements Tree.
func (f Folder) SumUp(ctx context.Context) (Sum, error) { return SumUp(ctx, f.dir, f.bounds) }

// Pack implements Tree.
func (f Folder) Pack(ctx context.Context, w io.Writer) error { return Pack(ctx, f.dir, f.bounds, w) }

// Replace implements Tree. It writes no more than the size of the volume.
func (f Folder) Replace(ctx context.Context, size int64, files io.Reader) (Sum, error) {
	if err := Clear(ctx, f.dir); err != nil {
		return Sum{}, err
	}
	if err := Fits(f.dir, size); err != nil {
		return Sum{}, err
	}
	if size > f.size {
		return Sum{}, fmt.Errorf("%w: its files are %d MiB, and the claim asks for %d MiB; raise requests.storage of the claim", ErrTooLarge, size>>20, f.size>>20)
	}
	bounds := f.bounds
	bounds.Data = f.size
	if err := Unpack(ctx, f.dir, bounds, files); err != nil {
		return Sum{}, err
	}
	return f.SumUp(ctx)
}
