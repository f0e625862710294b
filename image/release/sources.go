package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/image/sources"
)

// docs is where an image has the copyright file of each package, and its list of sources.
const docs = "usr/share/doc"

// checkSources demands that the archive of source packages has each file of the lock with its hash, and nothing more but
// their list; and that the one of the tree is of this commit. A draft may have neither.
func (o origin) checkSources(ctx context.Context, dir string) error {
	if o.draft && dir == "" {
		return nil
	}
	again := "; make sources" + o.asDraft()
	l, err := sources.Read(o.tree)
	if err != nil {
		return err
	}
	want := map[string]string{}
	for _, f := range l.Files {
		want[f.Name] = f.SHA256
	}
	if err := o.checkTree(ctx, filepath.Join(dir, sources.TreeArchive(o.version))); err != nil {
		return fmt.Errorf("%w%s", err, again)
	}
	name := filepath.Join(dir, sources.PackageArchive(o.version))
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("%w%s", err, again)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		sum := sha256.New()
		if err == nil {
			_, err = io.Copy(sum, r)
		}
		if err != nil {
			return fmt.Errorf("%s: %w%s", name, err, again)
		}
		file := path.Base(h.Name)
		if file != "SOURCES" && want[file] != fmt.Sprintf("%x", sum.Sum(nil)) {
			return fmt.Errorf("%s in %s is not what %s pins%s", file, name, sources.LockFile, again)
		}
		delete(want, file)
	}
	for file := range want {
		return fmt.Errorf("%s lacks %s%s", name, file, again)
	}
	return nil
}

// checkImageSources compares the system of an image with the tree's lists: it has the packages of the list, as their
// copyright files say, and says which sources they are built of.
func (o origin) checkImageSources(ctx context.Context, root, arch string) error {
	want, err := sources.OfImage(o.tree, o.version, arch)
	if err != nil {
		return err
	}
	has, err := exec.CommandContext(ctx, "unsquashfs", "-cat", root, docs+"/rivulet/SOURCES").Output()
	if err != nil || !bytes.Equal(has, want) {
		return fmt.Errorf("its %s/rivulet/SOURCES is not that of this tree (%v)", docs, err)
	}
	listed, err := exec.CommandContext(ctx, "unsquashfs", "-lls", "-d", "", root, docs).Output()
	if err != nil {
		return fmt.Errorf("unsquashfs: %w", err)
	}
	debs, err := sources.Image(o.tree, arch)
	if err != nil {
		return err
	}
	names := []string{"rivulet"}
	for _, d := range debs {
		names = append(names, d.Name)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(listed)) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), "/"+docs+"/")
		name, to, linked := strings.Cut(name, " -> ")
		if name == "" || strings.Contains(name, "/") {
			continue
		}
		found[name] = true
		if !slices.Contains(names, name) && (!linked || !slices.Contains(names, path.Base(to))) {
			return fmt.Errorf("it has a package %s that is not in %s", name, sources.ImageLock)
		}
	}
	for _, name := range names {
		if !found[name] {
			return fmt.Errorf("it has no package %s, which %s names", name, sources.ImageLock)
		}
	}
	return nil
}

// publishSources adds the archives to what is published, and the list of all packages.
func publishSources(version, from, out string) error {
	text, err := sources.OfAll(".", version)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "SOURCES"), text, 0o644); err != nil || from == "" {
		return err
	}
	for _, name := range []string{sources.PackageArchive(version), sources.TreeArchive(version)} {
		if err := publish(filepath.Join(from, name), out); err != nil {
			return err
		}
	}
	return nil
}
