// Package licenses carries the licences of everything that is in the binary: Rivulet's own, those
// of the Go modules, those of the programs of the bundle. It reads and writes nothing.
//
// The texts are collected by image/licenses/collect when the binary is built. NOTICE, at the root
// of the repository, is the list without the texts.
package licenses

import (
	"errors"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// ErrNone is returned by a binary that was built without the texts.
var ErrNone = errors.New("licenses: this binary was built without the texts; read NOTICE in the sources, or build with: make build")

// Write writes the list and all texts, about 1 MB. It returns ErrNone if there are none.
func Write(w io.Writer) error {
	if packed == "" {
		return ErrNone
	}
	r, err := zstd.NewReader(strings.NewReader(packed), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}
