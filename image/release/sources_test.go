package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"rivulet/image/sources"
)

// sourceTree makes a tree whose bundle is iptables and whose images are bash, by sources that are "hello" each.
func sourceTree(t *testing.T) string {
	t.Helper()
	tree, sum, hello := t.TempDir(), strings.Repeat("0", 64), fmt.Sprintf("%x", sha256.Sum256([]byte("hello")))
	for name, text := range map[string]string{
		sources.BundleList: "arm64 iptables 1 " + hello + "\n",
		sources.ImageLock:  "amd64 all bash 5 " + sum + "\narm64 all bash 5 " + sum + "\n",
		sources.LockFile: "deb arm64 iptables 1 " + hello + " iptables=1\ndeb all bash 5 " + sum + " bash=5\n" +
			"file " + hello + " iptables=1 iptables_1.dsc\nfile " + hello + " bash=5 bash_5.dsc\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, tree, name, []byte(text))
	}
	return tree
}

// withDocs makes the copyright files of an image for arm64, and its list of sources.
func withDocs(t *testing.T, o origin, root string) {
	t.Helper()
	list, err := sources.OfImage(o.tree, o.version, "arm64")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"bash/copyright": "terms", "rivulet/SOURCES": string(list)} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, docs, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, docs), name, []byte(text))
	}
	if err := os.Symlink("bash", filepath.Join(root, docs, "bash-alias")); err != nil {
		t.Fatal(err)
	}
}

// entry is a file of an archive; link: a symbolic link there.
type entry struct {
	name, text, link string
	mode             int64
}

func archived(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Size: int64(len(e.text)), Mode: e.mode}
		if e.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func packed(t *testing.T, entries ...entry) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(archived(t, entries...), nil)
}

// committedTree makes sourceTree a commit with a program and a link, and returns what its archive has to have.
func committedTree(t *testing.T) (tree string, good []entry) {
	t.Helper()
	r := newRepository(t)
	from := sourceTree(t)
	sh(t, r.dir, `cp -r "$1"/. . && printf '#!/bin/sh\n' >run && chmod +x run && ln -s image/sources there`, from)
	r.commit("README.md", "read")
	const top = "rivulet-v0.1.0-src/"
	good = []entry{{top + "README", "how to build", "", 0o644}, {top + "goproxy/a/@v/v1.mod", "module a", "", 0o644}, {top + "goproxy/a/@v/v1.zip", "zip", "", 0o644},
		{top + "cache/rivulet/debs/iptables_1_arm64.deb", "hello", "", 0o644}, {top + "rivulet/there", "", "image/sources", 0o777}, {top + "rivulet/run", "#!/bin/sh\n", "", 0o755}}
	for _, name := range []string{"README.md", sources.BundleList, sources.ImageLock, sources.LockFile} {
		text, err := os.ReadFile(filepath.Join(r.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		good = append(good, entry{top + "rivulet/" + name, string(text), "", 0o644})
	}
	return r.dir, good
}

// A release has the source of each Debian package by its pinned hash, and its own, of this very commit and version.
func TestNoReleaseWithoutSources(t *testing.T) {
	o := asked
	tree, own := committedTree(t)
	o.tree = tree
	archive := func(files ...string) []byte {
		var all []entry
		for _, f := range files {
			name, text, _ := strings.Cut(f, "=")
			all = append(all, entry{"rivulet-v0.1.0-sources/" + name, text, "", 0o644})
		}
		return archived(t, all...)
	}
	good := []string{"SOURCES=list", "bash_5.dsc=hello", "iptables_1.dsc=hello"}
	// with returns the tree's archive with one file changed; without is its file left out.
	with := func(name string, change func(*entry)) []byte {
		t.Helper()
		all := slices.Clone(own)
		i := slices.IndexFunc(all, func(e entry) bool { return strings.HasSuffix(e.name, name) })
		change(&all[i])
		return packed(t, all...)
	}
	without := func(name string) []byte {
		return packed(t, slices.DeleteFunc(slices.Clone(own), func(e entry) bool { return strings.HasSuffix(e.name, name) })...)
	}
	more := func(e entry) []byte { return packed(t, append(slices.Clone(own), e)...) }
	older := slices.Clone(own)
	for i, e := range older {
		older[i].name = strings.Replace(e.name, "v0.1.0", "v0.0.9", 1)
	}
	whole := packed(t, own...)
	for name, tc := range map[string]struct {
		archive, own []byte
		want         string
	}{
		"good":        {archive(good...), whole, ""},
		"no own":      {archive(good...), nil, "src.tar.zst: no such file"},
		"none":        {nil, whole, "sources.tar: no such file"},
		"one is gone": {archive(good[:2]...), whole, "lacks iptables_1.dsc"},
		"another one": {archive(append(good[:2:2], "iptables_1.dsc=hellp")...), whole, "iptables_1.dsc in "},
		"one more":    {archive(append(good, "more_1.dsc=hello")...), whole, "more_1.dsc in "},
		"one twice":   {archive(append(good, good[1])...), whole, "bash_5.dsc in "},
		"cut":         {archive(good...)[:700], whole, "sources.tar"},

		"own is empty":                 {archive(good...), []byte{}, "src.tar.zst: it lacks"},
		"own has nothing":              {archive(good...), packed(t), "src.tar.zst: it lacks"},
		"own is cut":                   {archive(good...), whole[:len(whole)/2], "src.tar.zst: "},
		"own is no archive":            {archive(good...), []byte("hello, this is text"), "src.tar.zst: "},
		"own of another version":       {archive(good...), packed(t, older...), "is not of v0.1.0: it has rivulet-v0.0.9-src/"},
		"own of another commit":        {archive(good...), with("README.md", func(e *entry) { e.text = "real" }), "README.md is not that of the commit"},
		"own with another mode":        {archive(good...), with("/run", func(e *entry) { e.mode = 0o644 }), "run is not that of the commit"},
		"own with another link":        {archive(good...), with("/there", func(e *entry) { e.link = "image" }), "there is not that of the commit"},
		"own without a file":           {archive(good...), without("README.md"), "it lacks README.md and 0 files more"},
		"own with a file more":         {archive(good...), more(entry{"rivulet-v0.1.0-src/rivulet/more.go", "package x", "", 0o644}), "it has more.go, which is not of the commit"},
		"own with a file twice":        {archive(good...), more(own[len(own)-1]), "which is not of the commit, or is there twice"},
		"own with a file elsewhere":    {archive(good...), more(entry{"rivulet-v0.1.0-src/more", "x", "", 0o644}), "it has more, which builds nothing"},
		"own without modules":          {archive(good...), without(".zip"), "it has 0 modules in goproxy"},
		"own without README":           {archive(good...), without("/README"), "README: false"},
		"own without Debian's":         {archive(good...), without(".deb"), "it lacks iptables_1_arm64.deb"},
		"own with another of Debian's": {archive(good...), with(".deb", func(e *entry) { e.text = "hellp" }), "iptables_1_arm64.deb is not what"},
	} {
		dir := t.TempDir()
		if tc.archive != nil {
			write(t, dir, sources.PackageArchive(o.version), tc.archive)
		}
		if tc.own != nil {
			write(t, dir, sources.TreeArchive(o.version), tc.own)
		}
		err := o.checkSources(t.Context(), dir)
		if (err == nil) != (tc.want == "") || err != nil && (!strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "; make sources")) {
			t.Errorf("%s: %v, want %q and a cure", name, err, tc.want)
		}
	}
}

// An image with a package that no list names, without one that is named, or with the list of another tree is not
// released: nobody could have its sources.
func TestImagesHaveTheirSources(t *testing.T) {
	for _, tool := range []string{"mksquashfs", "unsquashfs"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool + ": make deps")
		}
	}
	o := asked
	o.tree = sourceTree(t)
	for name, tc := range map[string]struct{ change, want string }{
		"good":         {"true", ""},
		"one more":     {"mkdir usr/share/doc/busybox", "it has a package busybox that is not in"},
		"another link": {"ln -s busybox usr/share/doc/zz", "it has a package zz that is not in"},
		"one less":     {"rm -r usr/share/doc/bash", "it has no package bash"},
		"another list": {"echo >>usr/share/doc/rivulet/SOURCES", "SOURCES is not that of this tree"},
		"no list":      {"rm usr/share/doc/rivulet/SOURCES", "SOURCES is not that of this tree"},
	} {
		dir := t.TempDir()
		root := filepath.Join(dir, "root")
		withDocs(t, o, root)
		sh(t, root, tc.change)
		sh(t, dir, "mksquashfs root root.squashfs -quiet -no-progress")
		err := o.checkImageSources(t.Context(), filepath.Join(dir, "root.squashfs"), "arm64")
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
