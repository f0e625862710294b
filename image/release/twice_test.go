package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"rivulet/image/filesum"
)

// One binary makes the same release twice, whatever the folder, the hour, the time zone, the umask and the
// times of files: packages, compressed binary, bills of materials, installer, BUILDINFO, statement, hashes. That a commit makes the same
// binary is make twice, a part of make release.
func TestAReleaseIsTheSameTwice(t *testing.T) {
	arch := thisArch()
	program := "_build/bundle/linux_" + runtime.GOARCH + "/rivulet-tunnel" // static as the product is, and small
	packed := "image/bundle/bundle_linux_" + runtime.GOARCH + ".tar.zst"
	t.Chdir("../..")
	for _, file := range []string{program, packed, "_build/nfpm"} {
		if _, err := os.Stat(file); err != nil {
			t.Skip("needs " + file + ": make test-binaries")
		}
	}
	var all [2]map[string]string
	for i := range all {
		dir := t.TempDir()
		in, packaged, out := filepath.Join(dir, "in"), filepath.Join(dir, "packages"), filepath.Join(dir, "out")
		binary := filepath.Join(in, arch, "rivulet")
		sh(t, ".", `mkdir -p "$(dirname "$2")" && cat "$1" "$4" >"$2" && touch -d "$3 days ago" "$2" image/package/copyright`, program, binary, []string{"1", "400"}[i], packed)
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "umask "+[]string{"022", "077"}[i]+` && rm -rf _build/pages && mkdir -p "$1" && exec make --no-print-directory package VERSION=v0.1.0 BUILD_TIME=1700000000 PACKAGE_ARCH="$2" BINARY="$0" INTO="$1"`,
			binary, filepath.Join(packaged, arch), arch)
		cmd.Env = append(os.Environ(), "TZ="+[]string{"UTC", "Asia/Tokyo"}[i])
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		if err := run(origin{tree: ".", version: "v0.1.0", draft: true, built: "1700000000", rootKeys: "root"}, in, out, "", packaged, "", "", []string{arch}, nil); err != nil {
			t.Fatal(err)
		}
		all[i] = map[string]string{}
		files, err := os.ReadDir(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if all[i][f.Name()], _, err = filesum.SHA256(filepath.Join(out, f.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(all[0]) < 11 || len(all[1]) != len(all[0]) {
		t.Errorf("%d and %d files", len(all[0]), len(all[1]))
	}
	for name, sum := range all[0] {
		if all[1][name] != sum {
			t.Errorf("%s is another one the second time", name)
		}
	}
}

// What differs between two builds is named, with what to do; both files stay.
func TestWhatDiffersInTheSecondBuildIsNamed(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "rivulet"), filepath.Join(dir, "again", "rivulet")
	if err := os.Mkdir(filepath.Dir(two), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "rivulet", []byte("hello\n"))
	for _, tc := range []struct{ again, want string }{{"hello\n", ""}, {"hellp\n", " 5, line 1)"}, {"", "EOF on"}, {"none", "No such file"}} {
		if write(t, filepath.Dir(two), "rivulet", []byte(tc.again)); tc.again == "none" {
			if err := os.Remove(two); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), "./same", one, two)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		out, err := cmd.CombinedOutput()
		if (err == nil) != (tc.want == "") || err == nil && len(out) > 0 {
			t.Errorf("%q: %v: %s", tc.again, err, out)
		}
		for _, want := range []string{"release: " + one + " is another file when it is built again as " + two, tc.want, "go version -m", "make release"} {
			if tc.want != "" && !strings.Contains(string(out), want) {
				t.Errorf("%q: %s, want %q", tc.again, out, want)
			}
		}
	}
}
