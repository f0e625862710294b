package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"rivulet/appliance/config"
)

// What the configuration says of registries is for root's eyes, is what k3s reads,
// and is gone when the configuration says nothing any more.
func TestRegistries(t *testing.T) {
	c := testConfig(t)
	ours := filepath.Join(c.StateDir, "k3s-registries.yaml")
	c.Registries = "mirrors: {}\n"
	e := New(c)
	if err := e.prepareFiles(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(ours); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if raw, _ := os.ReadFile(ours); string(raw) != c.Registries || !slices.Contains(e.Args(), "--private-registry="+ours) {
		t.Errorf("%q, %q", raw, e.Args())
	}
	c.Registries = ""
	for range 2 {
		e = New(c)
		if err := e.prepareFiles(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(ours); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the old file is left: %v", err)
		}
	}
	if !slices.Contains(e.Args(), "--private-registry="+config.OwnRegistries) {
		t.Errorf("the user's own file is not read: %q", e.Args())
	}
}
