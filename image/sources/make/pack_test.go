package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/image/debian"
	"rivulet/image/sources"
)

var built = time.Unix(1_700_000_000, 0).UTC()

// The archive has each file once, below the list, and the same bytes whatever the order and the times of the files.
func TestPackagesArePackedTheSameTwice(t *testing.T) {
	dir := t.TempDir()
	t.Chdir("../../..")
	var l sources.Lock
	for _, name := range []string{"glibc_2-1.dsc", "glibc_2.orig.tar.xz", "glibc_2-2.dsc", "glibc_2.orig.tar.xz", "acl_1.dsc"} {
		l.Files = append(l.Files, debian.SourceFile{Name: name})
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var one, two bytes.Buffer
	for i, w := range []io.Writer{&one, &two} {
		if err := packages(w, l, dir, "v1", built); err != nil {
			t.Fatal(err)
		}
		slices.Reverse(l.Files)
		if err := errors.Join(os.Chmod(filepath.Join(dir, "acl_1.dsc"), 0o644), os.Chtimes(filepath.Join(dir, "acl_1.dsc"), time.Time{}, built.Add(time.Duration(i)*time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("other bytes the second time")
	}
	var names []string
	for r := tar.NewReader(&one); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if text, err := io.ReadAll(r); err != nil || filepath.Base(h.Name) != "SOURCES" && string(text) != filepath.Base(h.Name) || h.Mode != 0o644 || !h.ModTime.Equal(built) {
			t.Errorf("%s: %q, %v, %o, %s", h.Name, text, err, h.Mode, h.ModTime)
		}
	}
	const top = "rivulet-v1-sources/"
	if want := []string{top + "SOURCES", top + "acl_1.dsc", top + "glibc_2-1.dsc", top + "glibc_2-2.dsc", top + "glibc_2.orig.tar.xz"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	l.Files = append(l.Files, debian.SourceFile{Name: "lost.dsc"})
	if err := packages(io.Discard, l, dir, "v1", built); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
}

// Rivulet's own archive builds what is in it with no network and no other module, and is the same bytes twice. It makes
// two of them and compiles some packages anew: make test-sources.
func TestTheTreeBuildsFromItsArchive(t *testing.T) {
	if os.Getenv("RIVULET_TEST_SOURCES") == "" {
		t.Skip("copies every module twice, minutes: make test-sources")
	}
	t.Chdir("../../..")
	cache, err := debian.Cache()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		proxy, err := modules()
		if err != nil {
			t.Fatal(err)
		}
		if err := replace(filepath.Join(dir, name), nil, func(w io.Writer) error { return tree(w, proxy, cache, "v1", built) }); err != nil {
			t.Fatal(err)
		}
	}
	const script = `cmp one two
rm two
tar -xf one
rm one
cd rivulet-v1-src/rivulet
export GOPROXY=file://$PWD/../goproxy GOSUMDB=off GOMODCACHE="$1/modules" GOCACHE="$1/cache" GOFLAGS="-buildvcs=false -modcacherw" HTTPS_PROXY=http://127.0.0.1:9 HTTP_PROXY=http://127.0.0.1:9
go build -o "$1/tunnel" ./cmd/rivulet-tunnel
test -x "$1/tunnel"
make --no-print-directory cni-packages
for arch in amd64 arm64 arm; do
	export GOARCH=$arch
	CGO_ENABLED=1 go list -deps -tags "$2" ./cmd/... >/dev/null
	go list -deps -tags cni_upstream ./cmd/rivulet-cni >/dev/null
	CGO_ENABLED=1 go -C image/bundle/runc list -deps github.com/opencontainers/runc >/dev/null
done
unset GOARCH
go -C image/package/nfpm list -deps github.com/goreleaser/nfpm/v2/cmd/nfpm >/dev/null
go mod verify
go -C image/bundle/runc mod verify`
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", script, "sh", dir, os.Getenv("RIVULET_TEST_SOURCES"))
	cmd.Dir = dir
	said, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(said), "all modules verified") != 2 {
		t.Fatalf("%v: %s", err, said)
	}
}
