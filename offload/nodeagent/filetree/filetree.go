// Package filetree carries the files of a volume from one device to another, and compares two trees: Pack, Unpack, SumUp
// (docs/design/volumes.md). Folders, files with holes, links, FIFOs, owners, modes, times and users' attributes are
// carried; sockets are left out, device files refused. Whoever owns the files may change them at any moment, and is
// hostile: nothing is used by a path of several names, each entry is opened by a descriptor without being followed and
// without effect (O_PATH). Time and memory follow what is on the disk, within Bounds. Nothing is kept: what was cut off
// is unpacked again from the beginning into a folder that Clear has emptied. Unpack returns after everything is on the
// disk.
package filetree

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// Errors of whoever gives a folder to be carried: ErrInUse while a pod has it, ErrBusy while
// what was begun with it has not ended.
var (
	ErrInUse = errors.New("a pod uses the volume; stop the pod first")
	ErrBusy  = errors.New("the files are still being carried; try again in a moment")
)

// Total is how much a tree holds.
type Total struct {
	// Files counts everything but the folder itself; Bytes is the data of files, holes
	// left out.
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Measure returns how much is in the folder.
func Measure(ctx context.Context, dir string, b Bounds) (t Total, err error) {
	err = carrying(ctx, dir, b, func(e *Entry, first string) error {
		if e.Path != "." {
			t.Files++
		}
		if e.Type() == unix.S_IFREG && first == "" {
			t.Bytes += min(e.Stat.Size, e.Stat.Blocks*512) // holes take no room
		}
		return nil
	})
	return t, err
}
