// Package flash writes a device image to a card or disk (docs/design/flash.md).
//
//	Open: signature, hash, map ─▶ Machine.Disk: may it be written? ─▶ (asked once) ─▶ Write ─▶ read back ─▶ Place
//
// It reads the image, FILE.sig and FILE.bmap beside it, /sys and /proc; it alone writes the disk that it was given,
// and only after all checks were good, the partition table last: a disk whose writing was cut short does not start.
// Restart: nothing is kept, flash again. Failure: an error that names what became of the disk.
package flash

import (
	"errors"
	"fmt"
)

var (
	// ErrImage is in every error that says that an image is not taken.
	ErrImage = errors.New("flash: the image is not taken")
	// ErrDisk is in every error that says that a disk is not written.
	ErrDisk = errors.New("flash: the disk is not written")
	// ErrHalf is in every error after the first write: the disk is no longer what it
	// was, and not yet the image.
	ErrHalf = errors.New("flash: the disk is not usable now")
)

// Stage is what is done at the moment.
type Stage string

// The stages, in order.
const (
	Checking Stage = "checking the image"
	Writing  Stage = "writing"
	Reading  Stage = "reading back"
)

// Progress is told how far a stage is, in bytes; of is 0 while nobody knows.
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
