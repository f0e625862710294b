// Package licenses has the licences of everything in the binary: Rivulet's own, those of the Go modules, those of the
// bundle's programs. image/licenses/collect collects the texts when the binary is built. NOTICE, at the root of the
// repository, is the list without the texts. It reads and writes nothing.
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
