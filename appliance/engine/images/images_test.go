package images

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"rivulet/offload/policy"
)

// blobs is a folder of blobs as containerd keeps it.
type blobs struct {
	*testing.T
	dir string
}

func (c blobs) add(v any) ocispec.Descriptor {
	c.Helper()
	raw, ok := v.([]byte)
	if !ok {
		var err error
		if raw, err = json.Marshal(v); err != nil {
			c.Fatal(err)
		}
	}
	d := digest.FromBytes(raw)
	path := blobPath(c.dir, d)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, raw, 0o600)); err != nil {
		c.Fatal(err)
	}
	return ocispec.Descriptor{Digest: d, Size: int64(len(raw))}
}

func (c blobs) image(layer string) ocispec.Descriptor {
	c.Helper()
	config, l := c.add(ocispec.Image{Author: layer}), c.add([]byte(layer))
	return c.add(ocispec.Manifest{Config: config, Layers: []ocispec.Descriptor{l}})
}

func TestArchiveHasWhatIsWhole(t *testing.T) {
	c := blobs{t, t.TempDir()}
	whole, torn := c.image("one layer"), c.image("another layer")
	missing := ocispec.Descriptor{Digest: digest.FromString("of another platform"), Size: 3}
	index := c.add(ocispec.Index{Manifests: []ocispec.Descriptor{missing, whole}})
	hollow := c.add(ocispec.Index{Manifests: []ocispec.Descriptor{missing}})
	if err := os.Remove(blobPath(c.dir, digest.FromString("another layer"))); err != nil {
		t.Fatal(err)
	}
	list := []Image{
		{Name: "docker.io/library/whole:1", Type: ocispec.MediaTypeImageManifest, Digest: whole.Digest},
		{Name: "docker.io/library/whole:latest", Type: ocispec.MediaTypeImageManifest, Digest: whole.Digest},
		{Name: "docker.io/library/torn:1", Type: ocispec.MediaTypeImageManifest, Digest: torn.Digest},
		{Name: "docker.io/library/index:1", Type: ocispec.MediaTypeImageIndex, Digest: index.Digest},
		{Name: "docker.io/library/hollow:1", Type: ocispec.MediaTypeImageIndex, Digest: hollow.Digest},
		{Name: "docker.io/library/gone:1", Type: ocispec.MediaTypeImageManifest, Digest: digest.FromString("gone")},
	}
	to := filepath.Join(t.TempDir(), "images", "recovered.tar")
	if err := os.Mkdir(filepath.Dir(to), 0o700); err != nil {
		t.Fatal(err)
	}
	names, err := Archive(c.dir, list, to)
	want := []string{"docker.io/library/whole:1", "docker.io/library/whole:latest", "docker.io/library/index:1"}
	if err != nil || !slices.Equal(names, want) {
		t.Fatalf("%v %v, want %v", names, err, want)
	}
	if has, err := Archived(to); err != nil || !slices.Equal(namesOf(has), want) {
		t.Errorf("the archive has %v %v, want %v", has, err, want)
	}
	f, err := os.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	if len(files) != 2+4 { // layout, index; index, manifest, config, layer
		t.Errorf("%d files", len(files))
	}
	var got ocispec.Index
	if err := json.Unmarshal(files["index.json"], &got); err != nil || len(got.Manifests) != 3 {
		t.Fatalf("%v %s", err, files["index.json"])
	}
	for i, m := range got.Manifests {
		raw := files["blobs/sha256/"+m.Digest.Encoded()]
		if m.Annotations[nameAnnotation] != want[i] || digest.FromBytes(raw) != m.Digest || int64(len(raw)) != m.Size {
			t.Errorf("%+v, %d bytes", m, len(raw))
		}
	}
}

func TestListIsReadAndKept(t *testing.T) {
	const printed = `REF                                 TYPE                                       DIGEST                                                                  SIZE     PLATFORMS   LABELS
rivulet.dev/pause:1                 application/vnd.oci.image.manifest.v1+json sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 1.0 KiB  linux/amd64 io.cri-containerd.image=managed
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 application/x sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 1.0 KiB linux/amd64 -
broken line
`
	list := Parse([]byte(printed))
	if len(list) != 1 || list[0].Name != "rivulet.dev/pause:1" || list[0].Type != ocispec.MediaTypeImageManifest {
		t.Fatalf("%+v", list)
	}
	path := filepath.Join(t.TempDir(), "images.json")
	if got, err := Load(path); got != nil || err != nil {
		t.Errorf("%v %v", got, err)
	}
	if err := Save(path, list); err != nil {
		t.Fatal(err)
	}
	was, _ := os.Stat(path)
	if err := Save(path, list); err != nil {
		t.Fatal(err)
	}
	if is, _ := os.Stat(path); !os.SameFile(was, is) {
		t.Error("an unchanged list was written again")
	}
	if got, err := Load(path); err != nil || !slices.Equal(got, list) {
		t.Errorf("%+v %v", got, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil {
		t.Error("half a file was read")
	}
}

func TestParse(t *testing.T) {
	d := digest.FromString("x")
	got := Parse([]byte("REF TYPE DIGEST SIZE PLATFORMS LABELS\n" +
		"a/shared:1 t " + d.String() + " 1.2 MiB linux/amd64 io.cri-containerd.image=managed,rivulet.dev/share=true\n" +
		"a/kept:1   t " + d.String() + " 1.2 MiB linux/amd64 io.cri-containerd.image=managed,rivulet.dev/share=\n" +
		"a/pushed:1 t " + d.String() + " 1.2 MiB linux/amd64 io.cri-containerd.image=managed,io.cri-containerd.pinned=pinned\n" +
		"a/provided:1 t " + d.String() + " 1.2 MiB linux/amd64 io.cri-containerd.pinned=pinned,rivulet.dev/provided=kept+lab/db+lab/web\n" +
		"a/system:1 t " + d.String() + " 1.2 MiB linux/amd64 io.cattle.k3s.pinned=pinned,io.cri-containerd.pinned=pinned\n" +
		d.String() + " t " + d.String() + " 1.2 MiB linux/amd64 rivulet.dev/share=true\n"))
	if want := []Image{{"a/kept:1", "t", d, false, false, ""}, {"a/provided:1", "t", d, false, true, "kept+lab/db+lab/web"}, {"a/pushed:1", "t", d, false, true, ""}, {"a/shared:1", "t", d, true, false, ""}, {"a/system:1", "t", d, false, false, ""}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// An image of Courses is kept, and given to their groups alone; what an operator has done stays, and nothing is written twice.
func TestProvide(t *testing.T) {
	const pinned = "io.cri-containerd.pinned"
	for _, c := range []struct {
		have map[string]string
		want string
	}{
		{nil, pinned + "=pinned rivulet.dev/provided=kept+lab/db+lab/web"},
		{map[string]string{pinned: "pinned"}, "rivulet.dev/provided=set+lab/db+lab/web"},
		{map[string]string{pinned: "pinned", policy.ProvidedLabel: "kept+lab/db"}, "rivulet.dev/provided=kept+lab/db+lab/web"},
		{map[string]string{pinned: "pinned", policy.ProvidedLabel: "kept+lab/db+lab/web", policy.ShareLabel: "true"}, ""},
		{map[string]string{pinned: "pinned", policy.ProvidedLabel: "set.kept.shared", policy.ShareLabel: "true"}, "rivulet.dev/share= rivulet.dev/provided=kept+lab/db+lab/web"},
	} {
		if got := strings.Join(provide(c.have, []string{"lab/web", "lab/db", "lab/web"}), " "); got != c.want {
			t.Errorf("%v: %q, want %q", c.have, got, c.want)
		}
	}
}

func namesOf(list []Image) (names []string) {
	for _, i := range list {
		names = append(names, i.Name)
	}
	return names
}
