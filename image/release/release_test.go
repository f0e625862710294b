package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTableAndLimit(t *testing.T) {
	small := size{arch: "amd64", compressed: 79_900_000, elf: 223_000_000, text: 90e6, rodata: 60e6, lines: 50e6, bundle: 13e6}
	got := string(table("v1", []size{small, {arch: "arm64", compressed: 99e6}}))
	for _, want := range []string{"Version v1", "| amd64 | 79.9 | 80 | 223.0 | 90.0 | 47.0 | 50.0 | 13.0 |", "| arm64 | 99.0 | – |"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	if err := exceeded([]size{small, {arch: "arm64", compressed: 99e6}}); err != nil {
		t.Error(err)
	}
	small.compressed = 80_100_000
	if err := exceeded([]size{small}); err == nil || !strings.Contains(err.Error(), "80.1 MB, promised are 80") {
		t.Errorf("too large: %v", err)
	}
}

// A binary of another architecture, or one that is not static, is not published.
func TestOnlyWhatItSays(t *testing.T) {
	if _, err := measure("arm64", "/proc/self/exe"); err == nil || !strings.Contains(err.Error(), "make build ARCH=arm64") {
		t.Errorf("this test as arm64: %v", err)
	}
	if _, err := measure("amd64", "/nowhere"); err == nil || !strings.Contains(err.Error(), "make build ARCH=amd64") {
		t.Errorf("nothing: %v", err)
	}
}

// Two folders, two caches, the same bytes: of a Go program, and of C for each
// architecture. The whole of it takes minutes, so only make test-arch does it.
func TestTheSameTwice(t *testing.T) {
	arches := strings.Fields(os.Getenv("RIVULET_ARCHES"))
	if len(arches) == 0 {
		t.Skip("takes minutes: make test-arch")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	goarch := strings.TrimSuffix(arches[0], "v7")
	files := []string{"rivulet-tunnel", "xtables", "pause", "libm.so.6"}
	var made [2]map[string][]byte
	for i := range made {
		dir := filepath.Join(t.TempDir(), strings.Repeat("deeper/", i), "tree")
		sh(t, root, `mkdir -p "$1" && git ls-files -z | xargs -0 cp --parents -t "$1"`, dir)
		made[i] = map[string][]byte{}
		for _, f := range files {
			target := "_build/bundle/linux_" + goarch + "/" + f
			sh(t, dir, `GOCACHE="$1" make --no-print-directory GOARCH=`+goarch+` `+target, filepath.Join(dir, "cache"))
			if made[i][f], err = os.ReadFile(filepath.Join(dir, target)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, f := range files {
		if !bytes.Equal(made[0][f], made[1][f]) {
			t.Errorf("%s differs between two folders", f)
		}
	}
}

func sh(t *testing.T, dir, script string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}
