package images

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"rivulet/appliance/state/quarantine"
)

func TestAListThatLacksAnImageIsNotKept(t *testing.T) {
	list := []Image{{Name: "rivulet.dev/demo-web:1"}, {Name: "docker.io/library/busybox:1"}}
	for _, c := range []struct {
		names []string
		kept  bool
	}{
		{nil, true},
		{[]string{"rivulet.dev/demo-web:1", "rivulet.dev/demo-web@sha256:abc"}, true},
		{[]string{"rivulet.dev/demo-web:2"}, false},
	} {
		if err := allListed(c.names, list); (err == nil) != c.kept {
			t.Errorf("%q: %v", c.names, err)
		}
	}
}

// Images are recovered, and before the engine has imported them the device is off, or containerd is damaged again. The node
// and containerd report none of them then; none is forgotten, and none that is in an archive is taken from it.
func TestASecondRecoveryBeforeTheImport(t *testing.T) {
	c := &Containerd{State: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	if err := os.MkdirAll(filepath.Dir(c.archive("")), 0o700); err != nil {
		t.Fatal(err)
	}
	image := func(b blobs, name string) Image {
		return Image{Name: name, Type: ocispec.MediaTypeImageManifest, Digest: b.image(name).Digest, Kept: true}
	}
	before := blobs{t, t.TempDir()}
	first := []Image{image(before, "docker.io/library/one:1"), image(before, "docker.io/library/two:1")}
	if kept, err := c.keep(before.dir, first); err != nil || len(kept) != 2 {
		t.Fatal(kept, err)
	}
	for _, list := range [][]Image{nil, first[:1]} {
		if err := c.complete(nil, list); err == nil {
			t.Errorf("a list of %d images counts as all of them", len(list))
		}
	}
	if err := c.complete(nil, first); err != nil {
		t.Error(err)
	}
	// Of the first two nothing was imported, a third one has come.
	now := blobs{t, t.TempDir()}
	all := append(slices.Clone(first), image(now, "docker.io/library/three:1"))
	for range 3 { // after each cut it is done again
		images, err := c.keep(now.dir, all)
		kept := namesOf(images)
		slices.Sort(kept)
		if err != nil || !slices.Equal(slices.Compact(kept), []string{"docker.io/library/one:1", "docker.io/library/three:1", "docker.io/library/two:1"}) {
			t.Fatal(kept, err)
		}
	}
	if err := c.complete(nil, first); err == nil {
		t.Error("the third image is not imported, and the list counts as whole")
	}
	if err := c.complete(nil, all); err != nil {
		t.Error(err)
	}
	// What cannot be read is set aside, and what is still there is in a new archive.
	list := c.pending()
	if len(list) != 2 {
		t.Fatalf("archives: %q", list)
	}
	if err := os.WriteFile(list[0], []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.complete(nil, all); err == nil {
		t.Error("an archive that cannot be read counts as imported")
	}
	if kept, err := c.keep(now.dir, all); err != nil || !slices.ContainsFunc(kept, all[2].same) {
		t.Error(kept, err)
	}
	if _, err := os.Stat(list[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the torn archive is still there: %v", err)
	}
	if aside := quarantine.List(c.agentDir()); len(aside) != 1 {
		t.Errorf("set aside, and shown: %q", aside)
	}
	if _, err := Archived(list[1]); err != nil {
		t.Error(err)
	}
}

// TestANewerImageOfTheSameNameIsKept: it is in an archive of its own, which is imported after the older one's.
func TestANewerImageOfTheSameNameIsKept(t *testing.T) {
	c := &Containerd{State: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	if err := os.MkdirAll(filepath.Dir(c.archive("")), 0o700); err != nil {
		t.Fatal(err)
	}
	b := blobs{t, t.TempDir()}
	var old, newer []Image
	for content, list := range map[string]*[]Image{"old": &old, "new": &newer} {
		*list = []Image{{Name: "docker.io/library/app:latest", Type: ocispec.MediaTypeImageManifest, Digest: b.image(content).Digest, Kept: true}}
	}
	for _, list := range [][]Image{old, newer, newer} {
		if kept, err := c.keep(b.dir, list); err != nil || !slices.ContainsFunc(kept, list[0].same) {
			t.Fatal(kept, err)
		}
	}
	archives := c.pending()
	if len(archives) != 2 {
		t.Fatalf("%q", archives)
	}
	if last, err := Archived(archives[1]); err != nil || !last[0].same(newer[0]) {
		t.Errorf("imported last is %v %v", last, err)
	}
	if err := c.imported(old); err == nil {
		t.Error("the older one counts as all")
	}
	if err := c.imported(newer); err != nil {
		t.Error(err)
	}
}
