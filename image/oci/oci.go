// Package oci makes small container images from static programs: the bundle's pause image, and those of the demo and
// the tests. It does no I/O except Layout; the same files give the same bytes.
package oci

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// File is one file of an image: a program, or, with Link set, a symbolic link.
type File struct {
	Name    string // path without a leading slash
	Content []byte
	Link    string
}

// Image returns an image of one layer. arch is a GOARCH.
func Image(arch string, config v1.Config, files []File) (v1.Image, error) {
	layer, err := layerOf(files)
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.Architecture, file.OS, file.Config = arch, "linux", config
	return mutate.ConfigFile(image, file)
}

// Archive returns a docker-archive tar of an image of one layer. arch is a GOARCH.
func Archive(tag, arch string, config v1.Config, files []File) ([]byte, error) {
	image, err := Image(arch, config, files)
	if err != nil {
		return nil, fmt.Errorf("oci: %s: %w", tag, err)
	}
	ref, err := name.NewTag(tag)
	if err != nil {
		return nil, fmt.Errorf("oci: %w", err)
	}
	var out bytes.Buffer
	if err := tarball.Write(ref, image, &out); err != nil {
		return nil, fmt.Errorf("oci: %s: %w", tag, err)
	}
	return out.Bytes(), nil
}

func layerOf(files []File) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: 0o755, Size: int64(len(f.Content))}
		if f.Link != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, f.Link, 0
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if f.Link == "" {
			if _, err := w.Write(f.Content); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
}
