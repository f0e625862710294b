package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The same commit and the same binary make the same image, bundle, block map and bill
// of materials: in another folder, later, under another umask, in another time zone
// and language, with one processor. It builds two images: make test-image-twice.
func TestTheSameImageTwice(t *testing.T) {
	arch, binary := os.Getenv("RIVULET_TWICE_ARCH"), os.Getenv("RIVULET_TWICE_BINARY")
	if arch == "" || binary == "" {
		t.Skip("builds two images, minutes: make test-image-twice")
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	var out [2]string
	for i, how := range []string{"umask 022; export TZ=UTC LANG=C; exec", "umask 077; export TZ=Asia/Tokyo LANG=de_DE.UTF-8; exec taskset -c 0"} {
		dir := filepath.Join(t.TempDir(), strings.Repeat("deeper/", i), "tree")
		out[i] = filepath.Join(dir, "bin/image")
		for _, c := range []string{
			`mkdir -p "$1" && git ls-files -z | xargs -0 cp --parents -t "$1"`,
			`cd "$1" && go build -o build ./image/device/build && ` + how + ` ./build -arch "$2" -binary "$3" -version v0 -kubernetes v1 -epoch 1700000000`,
		} {
			cmd := exec.Command("sh", "-c", c, "sh", dir, arch, binary)
			cmd.Dir = root
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", c, err, said)
			}
		}
		if err := os.RemoveAll(filepath.Join(dir, "_build")); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.ReadDir(out[0])
	if err != nil || len(files) != 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		if at := differ(t, filepath.Join(out[0], f.Name()), filepath.Join(out[1], f.Name()), 1<<40); at >= 0 {
			t.Errorf("%s differs at %d of %d", f.Name(), at, info.Size())
			continue
		}
		t.Logf("%s: %d bytes, the same", f.Name(), info.Size())
	}
}
