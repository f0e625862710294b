// Package filetree transfers the files of a volume from one device to another, and compares two trees: Pack, Unpack,
// SumUp (docs/design/volumes.md). Folders, files with holes, links, FIFOs, owners, modes, times and users' attributes
// are transferred; sockets are left out, device files refused. The owner of the files is hostile and may change them at
// any moment: no path of several names is used, and each entry is opened by a descriptor without being followed and
// without effect (O_PATH). Time and memory are in proportion to what is on the disk, within Bounds. It has no state:
// after an interruption everything is unpacked again into a folder that Clear has emptied. Unpack returns after
// everything is on the disk.
package filetree

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// Errors of holders of a folder: ErrInUse while a pod uses it, ErrBusy while an earlier operation has not ended,
// ErrUnreachable while its node is not connected.
var (
	ErrInUse       = errors.New("a pod uses the volume; stop the pod first")
	ErrBusy        = errors.New("the files are still being carried; try again in a moment")
	ErrUnreachable = errors.New("the node of the volume cannot be reached at the moment")
)

// Total is the size of a tree.
type Total struct {
	// Files counts everything but the folder itself; Bytes is the data of files without holes.
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Measure returns the size of the folder's content.
func Measure(ctx context.Context, dir string, b Bounds) (t Total, err error) {
	err = carrying(ctx, dir, b, func(e *Entry, first string) error {
		if e.Path != "." {
			t.Files++
		}
		if e.Type() == unix.S_IFREG && first == "" {
			t.Bytes += min(e.Stat.Size, e.Stat.Blocks*512) // without holes
		}
		return nil
	})
	return t, err
}
