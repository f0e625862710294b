package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/image/filesum"
)

// An image goes into a release only if its tests passed with this very image.
func TestOnlyImagesThatWereTested(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	name := filepath.Join(dir, "rivulet-v1-arm64")
	write := func(end, text string) {
		t.Helper()
		if err := os.WriteFile(name+end, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(why string) {
		t.Helper()
		err := images("v1", dir, out, []string{"arm64"})
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "; make ") {
			t.Errorf("%v, want %q", err, why)
		}
		if left, _ := os.ReadDir(out); len(left) > 0 {
			t.Errorf("published all the same: %v", left)
		}
	}
	refused("no such file")
	for _, end := range ends {
		write(end, end)
	}
	refused("was not tested")
	sum, _, err := filesum.SHA256(name + ".img.zst")
	if err != nil {
		t.Fatal(err)
	}
	write(testedEnd, "")
	refused("another image")
	write(testedEnd, sum+"  bin/image/rivulet-v1-arm64.img.zst\n")
	write(".img.zst", "built anew")
	refused("another image")
	write(".img.zst", ".img.zst")
	if err := images("v1", dir, out, []string{"arm64"}); err != nil {
		t.Fatal(err)
	}
	if err := writeSums(out); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range ends {
		if _, err := os.Stat(filepath.Join(out, filepath.Base(name)+end)); err != nil || !strings.Contains(string(sums), "  rivulet-v1-arm64"+end+"\n") {
			t.Errorf("%s: %v, sums %q", end, err, sums)
		}
	}
}
