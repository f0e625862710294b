package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
)

func TestImages(t *testing.T) {
	in, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	for _, arch := range []string{"amd64", "arm"} {
		if err := os.WriteFile(filepath.Join(in, arch), []byte("program of "+arch), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	licenses := filepath.Join(in, "licenses.zst")
	if err := run(in, licenses, "v1", "rivulet.dev/gateway:1", out, []string{"amd64"}); err == nil {
		t.Error("an image without licences was made")
	}
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(licenses, w.EncodeAll([]byte("all the texts"), nil), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second in place of the first
		if err := run(in, licenses, "v1", "rivulet.dev/gateway:1", out, []string{"amd64", "arm"}); err != nil {
			t.Fatal(err)
		}
	}
	root, err := layout.ImageIndexFromPath(filepath.Join(out, "oci"))
	if err != nil {
		t.Fatal(err)
	}
	top, err := root.IndexManifest()
	if err != nil || len(top.Manifests) != 1 || top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "rivulet.dev/gateway:1" {
		t.Fatalf("%+v %v", top, err)
	}
	index, err := root.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 2 {
		t.Fatalf("%+v %v", m, err)
	}
	for _, d := range m.Manifests {
		image, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		file, err := image.ConfigFile()
		if err != nil || file.Architecture != d.Platform.Architecture || file.Config.User != "65532:65532" || file.Config.Entrypoint[0] != "/rivulet-gateway" ||
			file.Config.Labels["org.opencontainers.image.version"] != "v1" || file.Config.Labels["org.opencontainers.image.licenses"] == "" {
			t.Errorf("%+v %v", file, err)
		}
		archive, err := tarball.ImageFromPath(filepath.Join(out, "gateway-"+d.Platform.Architecture+".tar"), nil)
		if err != nil {
			t.Fatal(err)
		}
		layers, err := archive.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%v %v", layers, err)
		}
		r, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		files := map[string]string{}
		for tr := tar.NewReader(r); ; {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			raw, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			files[h.Name] = string(raw)
		}
		if len(files) != 3 || !strings.Contains(files[sourcesFile], "rivulet-v1-src.tar.zst") || files[licensesFile] != "all the texts" || files["rivulet-gateway"] != "program of "+d.Platform.Architecture {
			t.Errorf("files %q", files)
		}
		r.Close()
	}
	if err := run(in, licenses, "v1", "rivulet.dev/gateway:1", out, []string{"riscv64"}); err == nil {
		t.Error("an image without a program was made")
	}
}
