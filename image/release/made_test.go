package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"rivulet/image/device/layout"
	"rivulet/systemd"
)

var asked = origin{version: "v0.1.0", built: "1700000000", rootKeys: "a,b", generation: "3"}

// says makes a program that answers as `rivulet version -o json` does.
func says(t *testing.T, path, version, built, keys, generation string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`[{"name":"rivulet","version":%q},{"name":"built","version":%q},{"name":"root keys","version":%q},{"name":"key generation","version":%q}]`, version, built, keys, generation)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n[ \"$*\" = 'version -o json' ] && echo '"+text+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// A binary of another version, commit or trust is not released, whatever its name is; one for another architecture is
// asked by the emulator.
func TestBinariesAreAskedWhatTheyAre(t *testing.T) {
	in, tools := t.TempDir(), t.TempDir()
	native, foreign := "amd64", "arm64"
	if runtime.GOARCH == "arm64" {
		native, foreign = foreign, native
	}
	const built = "2023-11-14T22:13:20Z"
	for name, tc := range map[string]struct{ version, built, keys, generation, want string }{
		"good":       {"v0.1.0", built, "a,b", "3", ""},
		"version":    {"v0.1.0-dev.3", built, "a,b", "3", `rivulet "v0.1.0-dev.3", and "v0.1.0" is released`},
		"commit":     {"v0.1.0", "2023-11-14T22:13:21Z", "a,b", "3", `built "2023-11-14T22:13:21Z", and "2023-11-14T22:13:20Z" is`},
		"no keys":    {"v0.1.0", built, "none", "3", `root keys "none", and "a,b" is released`},
		"other keys": {"v0.1.0", built, "a", "3", `root keys "a", and "a,b" is released`},
		"generation": {"v0.1.0", built, "a,b", "2", `key generation "2", and "3" is released`},
	} {
		binary := filepath.Join(in, native, "rivulet")
		says(t, binary, tc.version, tc.built, tc.keys, tc.generation)
		err := asked.checkMade(t.Context(), in, []string{native}, nil)
		if (err == nil) != (tc.want == "") || err != nil && (!strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "; make build ARCH="+native)) {
			t.Errorf("%s: %v, want %q and a cure", name, err, tc.want)
		}
	}
	write(t, filepath.Join(in, native), "rivulet", []byte("#!/bin/sh\necho no >&2; exit 3\n"))
	if err := asked.checkMade(t.Context(), in, []string{native}, nil); err == nil || !strings.Contains(err.Error(), "does not say what it is: exit status 3: no; make build") {
		t.Errorf("no answer: %v", err)
	}

	says(t, filepath.Join(in, foreign, "rivulet"), "v0.1.0", built, "a,b", "3")
	path := os.Getenv("PATH")
	t.Setenv("PATH", tools)
	if err := asked.checkMade(t.Context(), in, []string{foreign}, nil); err == nil || !strings.Contains(err.Error(), "; make deps ARCH="+foreign) {
		t.Errorf("without an emulator: %v", err)
	}
	if err := os.WriteFile(filepath.Join(tools, emulators[foreign][1]), []byte("#!/bin/sh\n: >"+tools+"/called\nexec /bin/sh \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := asked.checkMade(t.Context(), in, []string{foreign}, nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(tools, "called")); err != nil {
		t.Errorf("the emulator was not called: %v", err)
	}
	t.Setenv("PATH", path)
}

// A binary of this tree answers in the words that are compared.
func TestARealBinaryIsUnderstood(t *testing.T) {
	binary := os.Getenv("RIVULET_BIN")
	if binary == "" {
		binary = "../../bin/rivulet"
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skip("needs " + binary + ": make build")
	}
	err := origin{version: "no version", built: "1", rootKeys: "no keys", generation: "0"}.checkBinary(t.Context(), runtime.GOARCH, binary)
	for _, want := range []string{`rivulet "v`, `built "20`, `root keys "`, `key generation "`} {
		if err == nil || !strings.Contains(err.Error(), "says "+want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// An image with another program than the released one, or a bundle with another system than the image, is not released.
func TestImagesHoldTheReleasedBinary(t *testing.T) {
	for _, tool := range []string{"mksquashfs", "unsquashfs"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool + ": make deps")
		}
	}
	in := t.TempDir()
	binary := filepath.Join(in, "arm64", "rivulet")
	name := filepath.Join(in, "image", "rivulet-v0.1.0-arm64")
	says(t, binary, "v0.1.0", "", "", "")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	o := asked
	o.tree = sourceTree(t)
	squashed := func(program string) []byte {
		t.Helper()
		dir := t.TempDir()
		withDocs(t, o, filepath.Join(dir, "root"))
		inside := filepath.Join(dir, "root", systemd.Binary)
		if err := os.MkdirAll(filepath.Dir(inside), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Dir(inside), filepath.Base(inside), []byte(program))
		if out, err := exec.CommandContext(t.Context(), "mksquashfs", filepath.Join(dir, "root"), filepath.Join(dir, "out"), "-quiet", "-no-progress").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		raw, err := os.ReadFile(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	bundle := func(version string, root []byte) []byte {
		t.Helper()
		manifest, err := json.Marshal(layout.Manifest{Version: version, Arch: "arm64"})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, f := range []struct {
			name string
			text []byte
		}{{layout.ManifestName, manifest}, {layout.BootPrefix + "linux", []byte("kernel")}, {layout.RootName, root}} {
			if err := w.WriteHeader(&tar.Header{Name: f.name, Size: int64(len(f.text)), Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(f.text); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	image := func(root []byte) []byte {
		t.Helper()
		var out bytes.Buffer
		z, err := zstd.NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		zeros := make([]byte, layout.MiB)
		for range (layout.Start + layout.BootSize) / layout.MiB {
			z.Write(zeros)
		}
		z.Write(root)
		z.Write(zeros)
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	good, other := squashed(string(program)), squashed("another rivulet")
	for _, tc := range []struct {
		name, want    string
		image, bundle []byte
	}{
		{"good", "", image(good), bundle("v0.1.0", good)},
		{"another program", "the rivulet in " + name + ".img.zst is another one", image(other), bundle("v0.1.0", other)},
		{"another bundle", "is another one than in its .img.zst", image(good), bundle("v0.1.0", other)},
		{"another version", `is of version "v0.0.9"`, image(good), bundle("v0.0.9", good)},
		{"cut short", "ends before its system does", image(good[:100])[:500], bundle("v0.1.0", good)},
		{"no bundle", "has no root.squashfs", image(good), nil},
		{"no squashfs", "that can be read", image([]byte("no squashfs")), bundle("v0.1.0", []byte("no squashfs"))},
	} {
		write(t, filepath.Dir(name), filepath.Base(name)+".img.zst", tc.image)
		write(t, filepath.Dir(name), filepath.Base(name)+".bundle", tc.bundle)
		err := o.checkMade(t.Context(), in, nil, []string{"arm64"})
		if (err == nil) != (tc.want == "") || err != nil && (!strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "; make image ARCH=arm64")) {
			t.Errorf("%s: %v, want %q and a cure", tc.name, err, tc.want)
		}
	}
}
