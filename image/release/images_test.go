package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/image/filesum"
)

// An image goes into a release only if its tests passed with this very image.
func TestOnlyImagesThatWereTested(t *testing.T) {
	dir, out, o := t.TempDir(), t.TempDir(), origin{version: "v1"}
	name := filepath.Join(dir, "rivulet-v1-arm64")
	write := func(end, text string) {
		t.Helper()
		if err := os.WriteFile(name+end, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(why string) {
		t.Helper()
		for _, err := range []error{o.checkTested(dir, []string{"arm64"}), o.images(dir, out, []string{"arm64"})} {
			if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "; make image ARCH=arm64 and make test-image ARCH=arm64") {
				t.Errorf("%v, want %q", err, why)
			}
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
	if err := os.Remove(name + ".bundle"); err != nil {
		t.Fatal(err)
	}
	refused(".bundle: no such file")
	write(".bundle", ".bundle")
	if err := o.images(dir, out, []string{"arm64"}); err != nil {
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

// make release refuses an image that is missing or untested before it builds anything: nothing that it would call is called.
func TestUntestedImagesAreRefusedBeforeTheBuild(t *testing.T) {
	bin := t.TempDir()
	release := func(images string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "make", "-C", "../..", "--no-print-directory", "release", "DRAFT=1", "VERSION=v1-draft", "BIN="+bin, "IMAGES="+images, "ARCHES=amd64", "TWICE=", "REPO_KEY=", "SIGN_KEY=", "SIGN_CERT=",
			`MAKE=sh -c 'echo built; exit 1'`)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("IMAGES=%s: released: %s", images, out)
		}
		return string(out)
	}
	if out := release(""); !strings.Contains(out, "built\n") {
		t.Errorf("without images it begins to build: %s", out)
	}
	if out := release("arm64"); strings.Contains(out, "built\n") || !strings.Contains(out, "; make image ARCH=arm64 DRAFT=1 and make test-image ARCH=arm64 DRAFT=1, or IMAGES=") {
		t.Errorf("a missing image: %s", out)
	}
	if err := os.Mkdir(filepath.Join(bin, "image"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, end := range ends {
		write(t, filepath.Join(bin, "image"), "rivulet-v1-draft-arm64"+end, []byte(end))
	}
	if out := release("arm64"); strings.Contains(out, "built\n") || !strings.Contains(out, "the image for arm64 was not tested") {
		t.Errorf("an untested image: %s", out)
	}
}
