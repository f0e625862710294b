package filetree

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// maxExtents keeps a header far below the bound of tar readers (1 MiB). For a file in more pieces the smallest
	// holes between them are sent as data,
	maxExtents = 10_000
	// up to the size of the file's data and maxFill, in bytes.
	maxFill = 1 << 30
)

// extent is a piece of a file that holds data.
type extent struct{ at, length int64 }

func (e extent) end() int64 { return e.at + e.length }

// eachExtent calls f for every piece of a file that holds data, in order; for the whole file if the file system has no
// holes. Holes cost no time.
func eachExtent(ctx context.Context, f *os.File, size int64, do func(extent) error) error {
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // a hole up to the end
			return nil
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
			return do(extent{at, size - at})
		}
		if err != nil {
			return err
		}
		if begin >= size { // the file grows
			return nil
		}
		end, err := unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		end = min(end, size)
		if err := do(extent{begin, end - begin}); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// extents returns where a file holds data, in at most maxExtents pieces.
func extents(ctx context.Context, f *os.File, size int64) (out []extent, err error) {
	data, gap := int64(0), int64(0)
	err = eachExtent(ctx, f, size, func(e extent) error {
		data += e.length
		out = joined(out, e, gap)
		for len(out) > maxExtents {
			gap = max(2*gap, 4096)
			all := out
			out = all[:0]
			for _, e := range all {
				out = joined(out, e, gap)
			}
		}
		return nil
	})
	sent := int64(0)
	for _, e := range out {
		sent += e.length
	}
	if err == nil && sent > 2*data+maxFill {
		err = fmt.Errorf("%w: the file has more than %d pieces with large holes between them; copy it without holes (cp --sparse=never)", ErrTooLarge, maxExtents)
	}
	return out, err
}

// joined appends a piece, or extends the last one over a hole of at most gap.
func joined(all []extent, e extent, gap int64) []extent {
	if n := len(all); n > 0 && e.at-all[n-1].end() <= gap {
		all[n-1].length = e.end() - all[n-1].at
		return all
	}
	return append(all, e)
}
