package bundle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// maxGateway bounds the size of an unpacked program, bytes.
const maxGateway = 64 << 20

// Gateway returns the gateway pod's program for an architecture, a GOARCH.
func (d Dir) Gateway(arch string) ([]byte, error) {
	f, err := os.Open(filepath.Join(d.root, current, "gateway", filepath.Base(arch)+".zst"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("bundle: there is no gateway program for %s", arch)
	}
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	defer f.Close()
	r, err := zstd.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	defer r.Close()
	raw, err := io.ReadAll(io.LimitReader(r, maxGateway))
	if err != nil {
		return nil, fmt.Errorf("bundle: the gateway program for %s is damaged: %w: rivulet doctor --fix", arch, err)
	}
	return raw, nil
}
