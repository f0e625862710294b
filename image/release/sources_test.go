package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/image/sources"
)

// sourceTree makes a tree whose bundle is iptables and whose images are bash, by sources that are "hello" each.
func sourceTree(t *testing.T) string {
	t.Helper()
	tree, sum, hello := t.TempDir(), strings.Repeat("0", 64), fmt.Sprintf("%x", sha256.Sum256([]byte("hello")))
	for name, text := range map[string]string{
		sources.BundleList: "arm64 iptables 1 " + sum + "\n",
		sources.ImageLock:  "amd64 all bash 5 " + sum + "\narm64 all bash 5 " + sum + "\n",
		sources.LockFile: "deb arm64 iptables 1 " + sum + " iptables=1\ndeb all bash 5 " + sum + " bash=5\n" +
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

// A release has the source of each Debian package by its pinned hash, and its own.
func TestNoReleaseWithoutSources(t *testing.T) {
	o := asked
	o.tree = sourceTree(t)
	archive := func(files ...string) []byte {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, f := range files {
			name, text, _ := strings.Cut(f, "=")
			if err := w.WriteHeader(&tar.Header{Name: "rivulet-v0.1.0-sources/" + name, Size: int64(len(text)), Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
			w.Write([]byte(text))
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	good := []string{"SOURCES=list", "bash_5.dsc=hello", "iptables_1.dsc=hello"}
	for name, tc := range map[string]struct {
		archive []byte
		own     bool
		want    string
	}{
		"good":        {archive(good...), true, ""},
		"no own":      {archive(good...), false, "src.tar.zst: no such file"},
		"none":        {nil, true, "sources.tar: no such file"},
		"one is gone": {archive(good[:2]...), true, "lacks iptables_1.dsc"},
		"another one": {archive(append(good[:2:2], "iptables_1.dsc=hellp")...), true, "iptables_1.dsc in "},
		"one more":    {archive(append(good, "more_1.dsc=hello")...), true, "more_1.dsc in "},
		"one twice":   {archive(append(good, good[1])...), true, "bash_5.dsc in "},
		"cut":         {archive(good...)[:700], true, "sources.tar"},
	} {
		dir := t.TempDir()
		if tc.archive != nil {
			write(t, dir, sources.PackageArchive(o.version), tc.archive)
		}
		if tc.own {
			write(t, dir, sources.TreeArchive(o.version), nil)
		}
		err := o.checkSources(dir)
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
