// Package flash writes a device image to a card or disk (docs/design/flash.md).
//
//	Open: signature, hash, map ─▶ Machine.Disk: may it be written? ─▶ (confirmed) ─▶ Write ─▶ read back ─▶ Identify ─▶ Place
//
// It reads the image, FILE.sig and FILE.bmap beside it, /sys and /proc. It alone writes the given disk, only after all
// checks passed, and the partition table last: a disk whose writing was interrupted does not start. Restart: no state;
// flash again. Failure: an error with the state of the disk.
package flash

import (
	"errors"
	"fmt"
)

var (
	// ErrImage is in every error about an image that is refused.
	ErrImage = errors.New("flash: the image is not taken")
	// ErrDisk is in every error about a disk that is not written.
	ErrDisk = errors.New("flash: the disk is not written")
	// ErrHalf is in every error after the first write: the disk's old content is lost, and the image incomplete.
	ErrHalf = errors.New("flash: the disk is not usable now")
)

type Stage string

// The stages, in order.
const (
	Checking Stage = "checking the image"
	Writing  Stage = "writing"
	Reading  Stage = "reading back"
)

// Progress receives the position of a stage, in bytes; of is 0 while the total is unknown.
type Progress func(s Stage, done, of int64)

func image(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrImage, fmt.Errorf(format, args...))
}

func disk(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDisk, fmt.Errorf(format, args...))
}

func half(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrHalf, fmt.Errorf(format, args...))
}
