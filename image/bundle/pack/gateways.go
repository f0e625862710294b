package main

import (
	"bytes"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// gatewayPrograms packs the gateway pod's programs, files named by their architectures. They stay compressed on disk:
// they are read once, and only for a burst to a cluster without Rivulet.
func gatewayPrograms(paths []string) ([]entry, error) {
	var all []entry
	for _, path := range paths {
		content, err := read(path)
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		w, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window))
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		all = append(all, file("gateway/"+filepath.Base(path)+".zst", 0o644, out.Bytes()))
	}
	return all, nil
}
