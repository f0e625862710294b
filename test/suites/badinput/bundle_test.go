package badinput

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/lab"
)

// Helpers damaged on disk are unpacked again, at the start and while running, and
// pods start with them.
func TestDamagedHelpers(t *testing.T) {
	a, _ := pair(t)
	root := a.Path(state + "/bundle")
	current := func(name string) string {
		id, err := os.Readlink(filepath.Join(root, "current"))
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(root, id, name)
	}
	for i, tc := range []struct {
		name    string
		running bool
		damage  func() error
	}{
		{"runc cut off while running", true, func() error { return cut(current("bin/runc"), 1000) }},
		// In one step: it is unpacked again faster than it is removed file by file.
		{"everything gone while running", true, func() error {
			return errors.Join(os.Rename(root, root+".gone"), os.RemoveAll(root+".gone"))
		}},
		{"the shim cut off before the start", false, func() error { return cut(current("bin/containerd-shim-runc-v2"), 0) }},
		{"the manifest gone before the start", false, func() error { return os.Remove(current("manifest.json")) }},
		{"everything gone before the start", false, func() error { return os.RemoveAll(root) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !tc.running {
				stop(t, a)
			}
			mark := len(log(t, a, 0))
			if err := tc.damage(); err != nil {
				t.Fatal(err)
			}
			if !tc.running {
				start(t, a)
			}
			eventually(t, 30*time.Second, func() error {
				if said := log(t, a, mark); !strings.Contains(said, "helpers unpacked") {
					return fmt.Errorf("not unpacked again; it said: %s", said)
				}
				return nil
			})
			ready(t, a)
			name := fmt.Sprintf("helped-%d", i)
			pod(t, a, name)
			must(t, a, "rivulet", "kubectl", "delete", "pod", name, "--wait=false")
		})
	}
	peered(t, a)
}

// cut leaves the first bytes of a program, which may be running: its file itself could
// not be written then.
func cut(path string, size int) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".cut", raw[:size], 0o755); err != nil {
		return err
	}
	return os.Rename(path+".cut", path)
}

func peered(t *testing.T, d *lab.Device) {
	t.Helper()
	if err := d.WaitPeered(limit(t, time.Minute), 1); err != nil {
		t.Fatal(err)
	}
}
