package quarantine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestNothingIsLostAndAllIsListed(t *testing.T) {
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "state.db"), filepath.Join(dir, "containerd")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(folder, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	linked, err := Link(file)
	if err != nil {
		t.Fatal(err)
	}
	moved, err := Move(folder)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{linked, moved}
	slices.Sort(want)
	if got := List(dir, filepath.Join(dir, "none")); !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	if raw, err := os.ReadFile(linked); err != nil || string(raw) != "x" {
		t.Errorf("%q %v", raw, err)
	}
	if _, err := os.Stat(filepath.Join(moved, "below")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("the folder is still in its place")
	}
	if _, err := Move(folder); err == nil {
		t.Error("what is not there was moved")
	}
}
