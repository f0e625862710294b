package filetree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Disk is the space of a file system: bytes, and inodes, of which it may not count any.
type Disk struct {
	Size       int64 `json:"size"`
	Free       int64 `json:"free"`
	Inodes     int64 `json:"inodes,omitempty"`
	InodesFree int64 `json:"inodesFree,omitempty"`
}

// DiskOf reads the file system of a folder.
func DiskOf(dir string) (Disk, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Disk{}, fmt.Errorf("%s: %w", dir, err)
	}
	block := int64(s.Bsize) //nolint:unconvert // of another size on 32-bit machines
	return Disk{int64(s.Blocks) * block, int64(s.Bavail) * block, int64(s.Files), int64(s.Ffree)}, nil
}

// Lacks reports whether less than one of so many parts of the space, or of the inodes, is free.
func (d Disk) Lacks(parts int64) bool {
	return d.Free < d.Size/parts || d.Inodes > 0 && d.InodesFree < d.Inodes/parts
}

// Used returns what the content of a folder takes of its disk: blocks of everything, and inodes. A file that has links
// elsewhere counts in part. With an error it is what was counted so far.
func Used(ctx context.Context, dir string) (t Total, err error) {
	err = Visit(ctx, dir, func(e *Entry) error {
		links := int64(1)
		if e.Type() != unix.S_IFDIR {
			links = max(1, int64(e.Stat.Nlink)) //nolint:unconvert // of another size on 32-bit machines
		}
		t.Bytes += e.Stat.Blocks * 512 / links
		t.Files++
		return nil
	})
	return t, err
}

// Usage is a disk, and what volumes take of it, by their names.
type Usage struct {
	Disk
	Volumes map[string]Taken `json:"volumes,omitempty"`
}

// Taken is what one volume takes: at least Total.
type Taken struct {
	Total
	// Unmeasured: it is deeper, or has more files in one folder, than Visit follows.
	Unmeasured bool `json:"unmeasured,omitempty"`
}

// Take measures a volume's folder until ctx ends.
func Take(ctx context.Context, dir string) Taken {
	total, err := Used(ctx, dir)
	return Taken{total, err != nil && ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist)}
}
