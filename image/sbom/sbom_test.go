package sbom

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/klauspost/compress/zstd"

	"rivulet/image/bundle"
	"rivulet/image/debian"
	"rivulet/image/sources"
)

// tree is a small repository: a rivulet that is another program with a bundle, pinned packages, and a NOTICE.
type tree struct {
	t       *testing.T
	program []byte
	modules []string // path and version
	pinned  []debian.Deb
	lock    sources.Lock
	notice  string
	files   map[string][]byte // of the bundle
}

// aProgram is a small program with modules, built as those with C are.
var aProgram = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "sbom")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir+"/sign", "rivulet/image/signed/sign")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(dir + "/sign")
})

func newTree(t *testing.T) *tree {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("needs gcc")
	}
	program, err := aProgram()
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	tr := &tree{t: t, program: program, notice: "Rivulet\n\n  Go standard library  BSD-3-Clause\n  libseccomp-dev 2.5-1+deb12u1  LGPL-2.1-only (linked into runc)\n"}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		tr.modules = append(tr.modules, m.Path+" "+m.Version)
		tr.notice += "  " + m.Path + " " + m.Version + "  MIT, Apache-2.0\n"
	}
	if len(tr.modules) < 2 {
		t.Fatalf("the program contains %v", tr.modules)
	}
	t.Chdir(t.TempDir())
	tr.pin("iptables", "1.8.9-2", "iptables=1.8.9-2")
	tr.pinned = append(tr.pinned, debian.Deb{Arch: "other", Name: "iptables", Version: "1", SHA256: strings.Repeat("0", 64)}) // of another architecture, and without sources
	tr.pin("libseccomp-dev", "2.5-1+deb12u1", "libseccomp=2.5-1")
	layer := archive(t, map[string][]byte{"hello": program})
	tr.files = map[string][]byte{
		"bin/runc":           program,
		"images/hello.tar":   archive(t, map[string][]byte{"layer.tar": layer}),
		"gateway/amd64.zst":  compress(t, program),
		"netfilter/packages": []byte("iptables 1.8.9-2\n"),
		"netfilter/lib/x.so": []byte("no program"),
	}
	return tr
}

// pin makes a package of the lists, and what it is built of.
func (tr *tree) pin(name, version string, from ...string) debian.Deb {
	d := debian.Deb{Arch: debianArch(runtime.GOARCH), Name: name, Version: version, SHA256: strings.Repeat("0123456789abcdef", 4)}
	of := sources.Binary{Deb: d}
	for _, s := range from {
		source, version, _ := strings.Cut(s, "=")
		of.Sources = append(of.Sources, debian.SourceVersion{Name: source, Version: version})
	}
	tr.pinned, tr.lock.Binaries = append(tr.pinned, d), append(tr.lock.Binaries, of)
	return d
}

// read writes the tree and reads its rivulet.
func (tr *tree) read() (Contents, error) {
	tr.t.Helper()
	put(tr.t, noticeFile, []byte(tr.notice))
	put(tr.t, sources.BundleList, debian.Format("# list\n", tr.pinned))
	put(tr.t, sources.LockFile, tr.lock.Format())
	put(tr.t, "rivulet", append(slices.Clone(tr.program), compress(tr.t, archive(tr.t, tr.files))...))
	return Of(runtime.GOARCH, "rivulet")
}

func (tr *tree) seal() {
	tr.t.Helper()
	var m bundle.Manifest
	for name, content := range tr.files {
		m.Files = append(m.Files, bundle.File{Name: name, SHA256: sum(content)})
	}
	text, err := json.Marshal(m)
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.files["manifest.json"] = text
}

func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func archive(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		w.Write(files[name])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func compress(t *testing.T, content []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(content, nil)
}

// bill reads what was written: the parts, and who needs whom.
func bill(t *testing.T, file string) (*cdx.BOM, map[string]cdx.Component, map[string][]string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var b cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(raw), cdx.BOMFileFormatJSON).Decode(&b); err != nil {
		t.Fatal(err)
	}
	parts, needs := map[string]cdx.Component{}, map[string][]string{}
	for _, c := range *b.Components {
		if _, twice := parts[c.BOMRef]; twice {
			t.Errorf("%s is there twice", c.BOMRef)
		}
		parts[c.BOMRef] = c
	}
	for _, d := range *b.Dependencies {
		needs[d.Ref] = *d.Dependencies
		for _, ref := range *d.Dependencies {
			if _, ok := parts[ref]; !ok {
				t.Errorf("%s needs %s, which is no part", d.Ref, ref)
			}
		}
	}
	return &b, parts, needs
}

// The bill of an image has all of it: each program wherever it is packed, each of its modules, each package.
func TestTheBillIsWhole(t *testing.T) {
	tr := newTree(t)
	tr.seal()
	bundled := slices.Clone(tr.pinned)
	busybox := tr.pin("busybox-static", "1:1.37.0-6+b9", "busybox=1:1.37.0-6", "glibc=2.41-12", "linux=6.12-1")
	tr.pinned = bundled // it is of the image
	c, err := tr.read()
	if err != nil {
		t.Fatal(err)
	}
	put(t, "image.zst", []byte("image"))
	built := time.Unix(1700000000, 0)
	if err := c.Write("image.zst", "v1", built, []debian.Deb{busybox}); err != nil {
		t.Fatal(err)
	}
	b, parts, needs := bill(t, "image.cdx.json")
	if s := b.Metadata.Component; s.Name != "image.zst" || (*s.Hashes)[0].Value != sum([]byte("image")) || b.Metadata.Timestamp != "2023-11-14T22:13:20Z" {
		t.Errorf("the subject is %+v of %s", s, b.Metadata.Timestamp)
	}
	arch := debianArch(runtime.GOARCH)
	image := "pkg:deb/debian/busybox-static@1%3A1.37.0-6%2Bb9?arch=" + arch + "&distro=debian-13&upstream=busybox%401%3A1.37.0-6"
	seccomp := "pkg:deb/debian/libseccomp-dev@2.5-1%2Bdeb12u1?arch=" + arch + "&distro=debian-12&upstream=libseccomp%402.5-1"
	stdlib := "pkg:golang/stdlib@" + strings.TrimPrefix(runtime.Version(), "go")
	for from, to := range map[string][]string{
		"image.zst": {"rivulet", image},
		"rivulet":   {"bundle/bin/runc", "bundle/gateway/amd64", "bundle/images/hello.tar/layer.tar/hello", stdlib, seccomp, "pkg:deb/debian/iptables@1.8.9-2?arch=" + arch + "&distro=debian-12&upstream=iptables%401.8.9-2"},
		image:       {"pkg:deb/debian/glibc@2.41-12?arch=source&distro=debian-13", "pkg:deb/debian/linux@6.12-1?arch=source&distro=debian-13"},
	} {
		for _, ref := range to {
			if !slices.Contains(needs[from], ref) {
				t.Errorf("%s lacks %s; it has %v", from, ref, needs[from])
			}
		}
	}
	for _, name := range []string{"rivulet", "bundle/bin/runc", "bundle/gateway/amd64", "bundle/images/hello.tar/layer.tar/hello"} {
		for _, m := range tr.modules {
			ref := "pkg:golang/" + strings.ReplaceAll(strings.Replace(m, " ", "@", 1), "+", "%2B")
			if !slices.Contains(needs[name], ref) || (*parts[ref].Licenses)[0].Expression != "MIT AND Apache-2.0" {
				t.Errorf("%s lacks %s, or its licences", name, ref)
			}
		}
	}
	if (*parts["bundle/bin/runc"].Hashes)[0].Value != sum(tr.program) || (*parts[seccomp].Licenses)[0].Expression != "LGPL-2.1-only" || (*parts[seccomp].Hashes)[0].Value != bundled[2].SHA256 {
		t.Errorf("%+v, %+v", parts["bundle/bin/runc"], parts[seccomp])
	}
	// What C programs of this machine are linked with.
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "dpkg-query --show --showformat='${Package}@${Version}\n' libc6-dev libgcc-$(gcc -dumpversion)-dev").Output()
	if err != nil {
		t.Skip("not Debian")
	}
	for want := range strings.FieldsSeq(strings.ReplaceAll(string(out), "+", "%2B")) {
		if !strings.Contains(strings.Join(needs["bundle/bin/runc"], "\n"), "debian/"+want+"?") {
			t.Errorf("runc lacks %s", want)
		}
	}
	first, err := os.ReadFile("image.cdx.json")
	if err != nil {
		t.Fatal(err)
	}
	if c, err = tr.read(); err != nil {
		t.Fatal(err)
	}
	if err := c.Write("image.zst", "v1", built, []debian.Deb{busybox}); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile("image.cdx.json"); err != nil || !bytes.Equal(first, again) {
		t.Errorf("the second time it is another one: %v", err)
	}
}

// A part that nobody has named fails, with a cure.
func TestWhatCannotBeNamedIsAnError(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*tree)
		want   string
	}{
		"a module without a licence":   {func(tr *tree) { tr.notice = strings.Replace(tr.notice, tr.modules[0], "x", 1) }, "does not name it; make notice"},
		"a package that is not pinned": {func(tr *tree) { tr.files["netfilter/packages"] = []byte("iptables 1.8.9-2\nlibmnl0 1\n") }, "[libmnl0 1]"},
		"no packages at all":           {func(tr *tree) { tr.pinned = nil }, sources.BundleList},
		"a package that is not there": {func(tr *tree) {
			tr.pinned = append(tr.pinned, debian.Deb{Arch: debianArch(runtime.GOARCH), Name: "x", Version: "1", SHA256: strings.Repeat("0", 64)})
		}, "make source-lock"},
		"a program that says nothing": {func(tr *tree) {
			tr.files["bin/cni"] = bytes.ReplaceAll(tr.program, []byte("\xff Go buildinf:"), []byte("\xff No buildinf:"))
		}, "bundle/bin/cni does not say what it is built of"},
	} {
		tr := newTree(t)
		tc.change(tr)
		tr.seal()
		if _, err := tr.read(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	tr := newTree(t)
	if _, err := tr.read(); err == nil || !strings.Contains(err.Error(), "has no bundle; make build ARCH=") {
		t.Errorf("no manifest: %v", err)
	}
	tr.seal()
	tr.files["bin/runc"] = []byte("changed")
	if _, err := tr.read(); err == nil || !strings.Contains(err.Error(), "bin/runc of its bundle is damaged") {
		t.Errorf("a changed file: %v", err)
	}
}

var moduleLine = regexp.MustCompile(`(?m)^\t(?:mod|dep|=>)\t(\S+)\t(v\S+)`)

// The bundle of this tree, unpacked by other tools: each module that they find is in the bill, and each pinned package.
func TestTheRealBundle(t *testing.T) {
	t.Chdir("../..")
	packed := "image/bundle/bundle_linux_" + runtime.GOARCH + ".tar.zst"
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", `mkdir "$2/out" && tar --zstd -xf "$1" -C "$2/out" && cat "$2/out/bin/rivulet-tunnel" "$1" >"$2/rivulet" && zstd -dq "$2"/out/gateway/*.zst`,
		"sh", packed, dir).CombinedOutput(); err != nil {
		t.Skipf("needs %s: make bundle: %s", packed, out)
	}
	file := filepath.Join(dir, "rivulet")
	c, err := Of(runtime.GOARCH, file)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(file, "v1", time.Unix(0, 0), nil); err != nil {
		t.Fatal(err)
	}
	_, parts, needs := bill(t, file+".cdx.json")
	for _, name := range []string{"bin/runc", "bin/cni", "bin/containerd-shim-runc-v2", "bin/rivulet-tunnel", "gateway/amd64", "gateway/arm64"} {
		said, err := exec.CommandContext(t.Context(), "go", "version", "-m", filepath.Join(dir, "out", name)).Output()
		if err != nil {
			t.Fatal(err)
		}
		replaced := regexp.MustCompile(`(?m)^\t(?:mod|dep)\t\S+\t\S+(?:\t\S+)?\n(\t=>)`).ReplaceAllString(string(said), "$1")
		found := moduleLine.FindAllStringSubmatch(replaced, -1)
		if len(found) < 3 {
			t.Errorf("%s: %v", name, found)
		}
		for _, m := range found {
			if ref := "pkg:golang/" + m[1] + "@" + strings.ReplaceAll(m[2], "+", "%2B"); !slices.Contains(needs["bundle/"+name], ref) {
				t.Errorf("%s lacks %s", name, ref)
			}
		}
	}
	all, err := sources.Bundle(".", debianArch(runtime.GOARCH))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		ref := purlOf(d, bundleDistro, debian.SourceVersion{})
		if !slices.ContainsFunc(slices.Collect(maps.Keys(parts)), func(p string) bool { return strings.HasPrefix(p, ref+"&upstream=") }) {
			t.Errorf("%s is missing", ref)
		}
	}
}
