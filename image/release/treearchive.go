package main

import (
	"archive/tar"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"

	"rivulet/image/sources"
)

// blob is a file of a commit, as git lists it: its mode, and the hash of its content.
type blob struct{ mode, hash string }

// treeArchive is what the archive of the tree still lacks, by the path in it.
type treeArchive struct {
	files   map[string]blob   // of the commit
	debs    map[string]string // of the bundle: SHA-256
	readme  bool
	modules int
}

// checkTree compares the archive of the tree with the commit that is released: it has each of its files, byte by byte, the
// Debian packages of the bundle by their pinned hashes, modules, and nothing more, in the folder of this version.
func (o origin) checkTree(ctx context.Context, name string) error {
	a := treeArchive{debs: map[string]string{}}
	var err error
	if a.files, err = o.committed(ctx); err != nil {
		return err
	}
	debs, err := sources.Bundle(o.tree, "")
	if err != nil {
		return err
	}
	for _, d := range debs {
		a.debs[d.File()] = d.SHA256
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer z.Close()
	top := strings.TrimSuffix(sources.TreeArchive(o.version), ".tar.zst") + "/"
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		file, ok := strings.CutPrefix(h.Name, top)
		if !ok {
			return fmt.Errorf("%s is not of %s: it has %s", name, o.version, h.Name)
		}
		if err := a.take(file, h, r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := a.lacks(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// committed lists the files of the commit by their path.
func (o origin) committed(ctx context.Context) (map[string]blob, error) {
	listed, err := o.git(ctx, "ls-tree", "-r", "-z", "--full-tree", "HEAD")
	if err != nil {
		return nil, err
	}
	all := map[string]blob{}
	for line := range strings.SplitSeq(strings.TrimRight(listed, "\x00"), "\x00") {
		about, file, _ := strings.Cut(line, "\t")
		f := strings.Fields(about) // mode, kind, hash
		if len(f) != 3 || f[1] != "blob" {
			return nil, fmt.Errorf("git ls-tree says %q of a file", line)
		}
		all[file] = blob{f[0], f[2]}
	}
	return all, nil
}

// take compares a file of the archive.
func (a *treeArchive) take(file string, h *tar.Header, content io.Reader) error {
	part, rest, _ := strings.Cut(file, "/")
	switch {
	case part == "rivulet" && rest != "":
		want, ok := a.files[rest]
		got, err := gitBlob(h, content, len(want.hash))
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", rest, err)
		case !ok:
			return fmt.Errorf("it has %s, which is not of the commit, or is there twice", rest)
		case got != want:
			return fmt.Errorf("%s is not that of the commit", rest)
		}
		delete(a.files, rest)
	case part == "goproxy" && rest != "":
		if path.Ext(file) == ".zip" && h.Size > 0 {
			a.modules++
		}
	case path.Dir(file) == "cache/rivulet/debs":
		deb, sum := path.Base(file), sha256.New()
		if _, err := io.Copy(sum, content); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if a.debs[deb] != fmt.Sprintf("%x", sum.Sum(nil)) {
			return fmt.Errorf("%s is not what %s pins", deb, sources.BundleList)
		}
		delete(a.debs, deb)
	case file == "README" && h.Size > 0:
		a.readme = true
	default:
		return fmt.Errorf("it has %s, which builds nothing", file)
	}
	return nil
}

// gitBlob returns what git lists of a file with this content: mode, and the hash of this length in hex.
func gitBlob(h *tar.Header, content io.Reader, length int) (blob, error) {
	b := blob{mode: "100644"}
	size := h.Size
	switch h.Typeflag {
	case tar.TypeReg:
		if h.Mode&0o100 != 0 {
			b.mode = "100755"
		}
	case tar.TypeSymlink:
		b.mode, content, size = "120000", strings.NewReader(h.Linkname), int64(len(h.Linkname))
	default:
		return b, fmt.Errorf("it is of the kind %q", h.Typeflag)
	}
	var sum hash.Hash = sha1.New() // as git names a content
	if length == 2*sha256.Size {
		sum = sha256.New()
	}
	fmt.Fprintf(sum, "blob %d\x00", size)
	_, err := io.Copy(sum, content)
	b.hash = fmt.Sprintf("%x", sum.Sum(nil))
	return b, err
}

// lacks is an error that names what was not in the archive.
func (a *treeArchive) lacks() error {
	for file := range a.files {
		return fmt.Errorf("it lacks %s and %d files more of the commit", file, len(a.files)-1)
	}
	for deb := range a.debs {
		return fmt.Errorf("it lacks %s of %s", deb, sources.BundleList)
	}
	if !a.readme || a.modules == 0 {
		return fmt.Errorf("it has %d modules in goproxy, README: %v", a.modules, a.readme)
	}
	return nil
}
