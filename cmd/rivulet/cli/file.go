package cli

import (
	"io"
	"os"

	"rivulet/appliance/state/durable"
)

// toFile makes a file for the owner alone, over what is there, that has its name only when
// it is whole and on the disk. An error of the disk ends in the cure; those of fill are its own.
func toFile(path, cure string, fill func(io.Writer) error) error {
	var own error
	err := durable.Replace(path, 0o600, func(f *os.File) error {
		disk := &durable.Writer{Writer: f}
		if own = fill(disk); disk.Err != nil {
			own = nil
			return durable.Cure(disk.Err)
		}
		return own
	})
	if own != nil {
		return own
	}
	return durable.WithCure(err, cure)
}
