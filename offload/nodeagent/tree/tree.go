// Package tree carries the files of a volume from one device to another, and tells
// whether two trees of files are the same.
//
//	Pack ──a stream (tar)──▶ Unpack        Sum here == Sum there
//
// What is carried: folders, files with their holes, hard and symbolic links, FIFOs;
// owners, modes, times of change, extended attributes that belong to users (user.*, POSIX
// ACLs). Sockets are left out: who listens makes them anew. Device files are refused.
//
// Whoever owns the files may change them at any moment, and is no friend. Nothing is
// used by a path of several names: each folder, from the volume's down, is held by a
// descriptor, each entry is opened without being followed and without effect (O_PATH),
// and what it is is read from the descriptor. So nothing outside of the folder is read or
// written, and no device is opened, whatever a stream or another process does.
//
// Time and memory follow what is on the disk, within Bounds: a hole takes neither, of
// headers one at a time is held, and everything ends with its context.
//
// Nothing is kept: what was cut off is unpacked again from the beginning into a folder
// that Clear has emptied. Unpack returns after everything is on the disk.
package tree

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
