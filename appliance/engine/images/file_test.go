package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rivulet/image/bundle"
	"rivulet/offload/nodeagent/tenantimages"
)

func archive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipped(t *testing.T, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(raw)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What people give as an image is told apart before containerd sees it.
func TestLook(t *testing.T) {
	layer := strings.Repeat("layer", 1000)
	docker := archive(t, map[string]string{"a.json": "{}", "manifest.json": `[{"Config":"a.json","RepoTags":["web:1","ghcr.io/x/y:2"],"Layers":["l"]}]`, "z": layer})
	oci := map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": `{"manifests":[{"annotations":{"org.opencontainers.image.ref.name":"1"}},{"annotations":{"io.containerd.image.name":"docker.io/library/db:3"}}]}`}
	for name, c := range map[string]struct {
		raw         []byte
		names, fail string
	}{
		"docker archive":       {raw: docker, names: "docker.io/library/web:1 ghcr.io/x/y:2"},
		"the same, zipped":     {raw: zipped(t, docker), names: "docker.io/library/web:1 ghcr.io/x/y:2"},
		"OCI archive":          {raw: archive(t, oci), names: "docker.io/library/db:3"},
		"the pause image":      {raw: archive(t, map[string]string{"manifest.json": `[{"RepoTags":["rivulet.dev/pause:1"]}]`}), fail: "a name of Rivulet's own"},
		"the example":          {raw: archive(t, map[string]string{"manifest.json": `[{"RepoTags":["rivulet.dev/hello:2"]}]`}), fail: "a name of Rivulet's own"},
		"one of a tenant":      {raw: archive(t, map[string]string{"index.json": `{"manifests":[{"annotations":{"io.containerd.image.name":"tenants.rivulet.invalid/x/docker.io/library/db:3"}}]}`}), fail: "a name of Rivulet's own"},
		"two names, one shown": {raw: archive(t, map[string]string{"oci-layout": "{}", "manifest.json": `[{"RepoTags":["web:1"]}]`, "index.json": `{"manifests":[{"annotations":{"io.containerd.image.name":"rivulet.dev/pause:1"}}]}`}), fail: "a name of Rivulet's own"},
		"without a name":       {raw: archive(t, map[string]string{"manifest.json": `[{"Config":"a.json","RepoTags":null}]`})},
		"a file system":        {raw: archive(t, map[string]string{"etc/passwd": "root"}), fail: "docker save"},
		"cut off":              {raw: docker[:3000], fail: "copy it again"},
		"no archive":           {raw: []byte(layer), fail: "no image and no archive"},
		"empty":                {raw: nil, fail: "docker save"},
		"no images":            {raw: archive(t, map[string]string{"manifest.json": "[]"}), fail: "docker save"},
		"a name that is bad":   {raw: archive(t, map[string]string{"manifest.json": `[{"RepoTags":["Web:1"]}]`}), fail: "NAME:TAG"},
	} {
		t.Run(name, func(t *testing.T) {
			at := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(at, c.raw, 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := Inspect(at)
			if c.fail != "" {
				if err == nil || !strings.Contains(err.Error(), c.fail) {
					t.Errorf("%v, want %q", err, c.fail)
				}
				return
			}
			if got := strings.Join(f.Names, " "); err != nil || got != c.names {
				t.Errorf("%s, %v, want %s", got, err, c.names)
			}
		})
	}
	if _, err := Inspect(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "docker save") {
		t.Errorf("no file: %v", err)
	}
}

// A folder is an OCI layout, or an error; packed it is the same as an archive of it.
func TestLookAtAFolder(t *testing.T) {
	dir := t.TempDir()
	if _, err := Inspect(dir); err == nil || !strings.Contains(err.Error(), "no OCI layout") {
		t.Errorf("an empty folder: %v", err)
	}
	for name, text := range map[string]string{"oci-layout": "{}", "index.json": `{"manifests":[{"annotations":{"org.opencontainers.image.ref.name":"shop/web:3"}}]}`, "blobs/sha256/x": "blob"} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"docker.io/shop/web:3"}
	if f, err := Inspect(dir); err != nil || !slices.Equal(f.Names, want) || !f.folder {
		t.Errorf("%+v, %v", f, err)
	}
	packed, err := os.Create(filepath.Join(t.TempDir(), "packed"))
	if err != nil {
		t.Fatal(err)
	}
	if err := pack(packed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if f, err := Inspect(packed.Name()); err != nil || !slices.Equal(f.Names, want) {
		t.Errorf("packed: %+v, %v", f, err)
	}
}

// With its last name an image loses those of the kubelet, which would keep its content.
func TestNamesGoTogether(t *testing.T) {
	list := []byte("REF TYPE DIGEST SIZE PLATFORMS LABELS\n" +
		"a:1 t sha256:11 1.0 KiB linux/amd64 -\na@sha256:11 t sha256:11 1.0 KiB linux/amd64 -\nsha256:99 t sha256:11 1.0 KiB linux/amd64 -\n" +
		"b:1 t sha256:22 1.0 KiB linux/amd64 -\nb:2 t sha256:22 1.0 KiB linux/amd64 -\nsha256:88 t sha256:22 1.0 KiB linux/amd64 -\n")
	for name, want := range map[string]string{"a:1": "a:1 a@sha256:11 sha256:99", "b:1": "b:1", "none:1": "none:1"} {
		if got := strings.Join(goWith(list, name), " "); got != want {
			t.Errorf("with %s go %s, want %s", name, got, want)
		}
	}
}

// The images that all tenants may use are those of the bundle.
func TestBundledImages(t *testing.T) {
	if want := []string{bundle.PauseImage, bundle.HelloImage}; !slices.Equal(tenantimages.Bundled, want) {
		t.Errorf("%q, the bundle has %q", tenantimages.Bundled, want)
	}
}
