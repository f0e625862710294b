package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rivulet/image/filesum"
	"rivulet/image/release/tried"
)

// imageAt makes an image with all that lies beside it but the log.
func imageAt(t *testing.T, dir, arch, content string) string {
	t.Helper()
	name := filepath.Join(dir, "rivulet-v1-"+arch)
	for _, end := range ends {
		if end == tried.End {
			continue
		}
		if err := os.WriteFile(name+end, []byte(content+end), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return name + ".img.zst"
}

// passes is a command that says that all tests of an image passed, but one.
func passes(t *testing.T, arch, but string) []string {
	t.Helper()
	tests, err := testsOf("../../"+imageTests, arch)
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for _, name := range tests {
		if name != but {
			said.WriteString("--- PASS: " + name + " (1.00s)\n")
		}
	}
	return []string{"sh", "-c", `printf %s "$0"`, said.String()}
}

// An image goes into a release with the log of a run in which each of its tests
// passed, on this very image; with nothing else.
func TestOnlyImagesThatWereTried(t *testing.T) {
	most, all := passes(t, "arm64", "TestCardForTheRaspberryPi"), passes(t, "arm64", "")
	t.Chdir("../..")
	dir, out := t.TempDir(), t.TempDir()
	release := func() (string, error) {
		var sums bytes.Buffer
		err := images("v1", dir, out, []string{"arm64"}, &sums)
		return sums.String(), err
	}
	refused := func(why string) {
		t.Helper()
		if _, err := release(); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "; make ") {
			t.Errorf("%v, want %q and a cure", err, why)
		}
		if got, _ := os.ReadDir(out); len(got) > 0 {
			t.Errorf("%v was published", got)
		}
	}
	refused("make image ARCH=arm64")
	image := imageAt(t, dir, "arm64", "one")
	refused("was not tried")
	if err := tried.Do(image, []string{"sh", "-c", "echo '--- FAIL: TestX'; exit 3"}, io.Discard); err == nil {
		t.Error("a run that failed is an error")
	}
	refused("the run failed")
	if err := tried.Do(image, most, io.Discard); err != nil {
		t.Fatal(err)
	}
	refused("TestCardForTheRaspberryPi did not run")
	if err := tried.Do(image, all, io.Discard); err != nil {
		t.Fatal(err)
	}
	imageAt(t, dir, "arm64", "two")
	refused("of another image")
	imageAt(t, dir, "arm64", "one")
	sums, err := release()
	if err != nil || strings.Count(sums, "\n") != len(ends) || !strings.Contains(sums, "rivulet-v1-arm64.test.log\n") {
		t.Errorf("%v: %s", err, sums)
	}
	for _, end := range ends {
		sum, _, err := filesum.SHA256(filepath.Join(out, "rivulet-v1-arm64"+end))
		if err != nil || !strings.Contains(sums, sum) {
			t.Errorf("%s: %v", end, err)
		}
	}
}

// Each test of images is of one of the two, or of updates.
func TestEveryTestOfImagesIsAskedFor(t *testing.T) {
	amd64, err := testsOf("../../"+imageTests, "amd64")
	if err != nil || !slices.Contains(amd64, "TestOutOfTheBox") || slices.ContainsFunc(amd64, func(n string) bool { return strings.Contains(n, "RaspberryPi") }) {
		t.Errorf("%v, %v", amd64, err)
	}
	arm64, err := testsOf("../../"+imageTests, "arm64")
	if err != nil || !slices.Contains(arm64, "TestCardForTheRaspberryPi") || slices.Contains(arm64, "TestOutOfTheBox") {
		t.Errorf("%v, %v", arm64, err)
	}
	if _, err := testsOf(t.TempDir(), "amd64"); err == nil || !strings.Contains(err.Error(), "no tests of images") {
		t.Errorf("a folder without tests: %v", err)
	}
}
