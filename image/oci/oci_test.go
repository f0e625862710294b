package oci

import (
	"archive/tar"
	"bytes"
	"io"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestArchiveHoldsTheFilesAndTheConfig(t *testing.T) {
	files := []File{{Name: "bin/tool", Content: []byte("program")}, {Name: "bin/sh", Link: "tool"}}
	config := v1.Config{Entrypoint: []string{"/bin/tool"}, User: "1000"}
	a, err := Archive("rivulet.dev/tool:1", "arm64", config, files)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Archive("rivulet.dev/tool:1", "arm64", config, files)
	if err != nil || !bytes.Equal(a, b) {
		t.Fatalf("the same files gave other bytes (%v)", err)
	}
	image, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(a)), nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	cf, err := image.ConfigFile()
	if err != nil || cf.Architecture != "arm64" || cf.Config.User != "1000" || cf.Config.Entrypoint[0] != "/bin/tool" {
		t.Fatalf("config %+v, %v", cf, err)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(tr)
		seen[h.Name] = string(body) + h.Linkname
	}
	if seen["bin/tool"] != "program" || seen["bin/sh"] != "tool" {
		t.Fatalf("files %v", seen)
	}
}

func TestBadTagIsAnError(t *testing.T) {
	if _, err := Archive("Not A Tag", "amd64", v1.Config{}, nil); err == nil {
		t.Fatal("no error")
	}
}
