// Package sources knows the source packages of all that a release takes from Debian: of the bundle (image/bundle/debs.list),
// and of device images (image/device/packages.lock). It reads those two lists and its own, packages.lock, which
// `make source-lock` writes. A binary package without its source is an error.
package sources

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/image/debian"
)

// The lists, below the root of the tree.
const (
	LockFile   = "image/sources/packages.lock"
	BundleList = "image/bundle/debs.list"
	ImageLock  = "image/device/packages.lock"
)

const renew = "; make source-lock, read the diff of " + LockFile + " and commit it"

// Binary is a package of Debian and the source packages that it is built of.
type Binary struct {
	debian.Deb
	Sources []debian.SourceVersion
}

// Lock has all packages of both lists, once each, and the files of their source packages.
type Lock struct {
	Binaries []Binary
	Files    []debian.SourceFile
}

const head = `# Sources of all that comes from Debian: each binary package of both lists with its source packages, each file of those.
#   deb  architecture package version sha256 source=version...
#   file sha256 source=version name
# Written by make source-lock; make sources checks every file against it. See docs/design/release.md.
`

// Format writes what Parse reads.
func (l Lock) Format() []byte {
	var out bytes.Buffer
	out.WriteString(head)
	for _, b := range l.Binaries {
		fmt.Fprintf(&out, "deb %s %s %s %s", b.Arch, b.Name, b.Version, b.SHA256)
		for _, s := range b.Sources {
			fmt.Fprintf(&out, " %s", s)
		}
		out.WriteByte('\n')
	}
	for _, f := range l.Files {
		fmt.Fprintf(&out, "file %s %s %s\n", f.SHA256, f.Of, f.Name)
	}
	return out.Bytes()
}

// Parse reads a lock. A file's name may be in several source packages if its content is the same.
func Parse(text []byte) (l Lock, err error) {
	sums, n := map[string]string{}, 0
	for line := range strings.Lines(string(text)) {
		n++
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#"):
			continue
		case f[0] == "deb" && len(f) > 5:
			b := Binary{Deb: debian.Deb{Arch: f[1], Name: f[2], Version: f[3], SHA256: f[4]}}
			for _, s := range f[5:] {
				b.Sources = append(b.Sources, source(s))
			}
			l.Binaries, err = append(l.Binaries, b), debian.CheckSHA256(b.SHA256)
		case f[0] == "file" && len(f) == 4:
			file := debian.SourceFile{Of: source(f[2]), Name: f[3], SHA256: f[1]}
			l.Files, err = append(l.Files, file), debian.CheckSHA256(file.SHA256)
			if other := sums[file.Name]; other != "" && other != file.SHA256 {
				err = fmt.Errorf("%s is there twice, with two contents", file.Name)
			}
			if sums[file.Name] = file.SHA256; filepath.Base(file.Name) != file.Name || strings.HasPrefix(file.Name, ".") {
				err = fmt.Errorf("%q is no file name", file.Name)
			}
		default:
			err = errors.New("it begins with neither deb nor file, or has too few words")
		}
		if err != nil {
			return Lock{}, fmt.Errorf("%s line %d: %w%s", LockFile, n, err, renew)
		}
	}
	return l, nil
}

func source(text string) debian.SourceVersion {
	name, version, _ := strings.Cut(text, "=")
	return debian.SourceVersion{Name: name, Version: version}
}

// Bundle returns the packages of the bundle for a Debian architecture; of all if it is empty.
func Bundle(tree, arch string) ([]debian.Deb, error) {
	text, err := os.ReadFile(filepath.Join(tree, BundleList))
	if err != nil {
		return nil, err
	}
	all, err := debian.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", BundleList, err)
	}
	return slices.DeleteFunc(all, func(d debian.Deb) bool { return arch != "" && d.Arch != arch }), nil
}

// ImageArches are the architectures that there are images for.
var ImageArches = []string{"amd64", "arm64"}

// Image returns the packages of the image for an architecture.
func Image(tree, arch string) ([]debian.Deb, error) {
	text, err := os.ReadFile(filepath.Join(tree, ImageLock))
	if err != nil {
		return nil, err
	}
	var mine bytes.Buffer
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(arch+" ")); ok {
			mine.Write(rest)
		}
	}
	debs, err := debian.Parse(mine.Bytes())
	if err == nil && len(debs) == 0 {
		err = errors.New("it has no packages for " + arch + "; make image-lock")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ImageLock, err)
	}
	return debs, nil
}

// All returns the packages of both lists, each once, by name.
func All(tree string) ([]debian.Deb, error) {
	all, err := Bundle(tree, "")
	if err != nil {
		return nil, err
	}
	for _, arch := range ImageArches {
		debs, err := Image(tree, arch)
		if err != nil {
			return nil, err
		}
		all = append(all, debs...)
	}
	slices.SortFunc(all, func(x, y debian.Deb) int {
		return strings.Compare(strings.Join([]string{x.Name, x.Version, x.Arch}, " "), strings.Join([]string{y.Name, y.Version, y.Arch}, " "))
	})
	return slices.Compact(all), nil
}

// Read reads the lock of a tree and compares it with both lists: each package has its sources in it, and it has nothing
// more.
func Read(tree string) (Lock, error) {
	text, err := os.ReadFile(filepath.Join(tree, LockFile))
	if err != nil {
		return Lock{}, fmt.Errorf("%w%s", err, renew)
	}
	l, err := Parse(text)
	if err != nil {
		return Lock{}, err
	}
	debs, err := All(tree)
	if err != nil {
		return Lock{}, err
	}
	return l, l.check(debs)
}

func (l Lock) check(debs []debian.Deb) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format+renew, args...)) }
	used := map[debian.SourceVersion]bool{}
	for _, d := range debs {
		sources := l.Of(d)
		if len(sources) == 0 {
			wrong("%s has no sources in %s", d, LockFile)
		}
		for _, s := range sources {
			used[s] = true
			if !slices.ContainsFunc(l.Files, func(f debian.SourceFile) bool { return f.Of == s && strings.HasSuffix(f.Name, ".dsc") }) {
				wrong("%s is built of %s, which has no files in %s", d, s, LockFile)
			}
		}
	}
	for _, b := range l.Binaries {
		if !slices.Contains(debs, b.Deb) {
			wrong("%s is in %s and in nothing that is released", b.Deb, LockFile)
		}
	}
	for _, f := range l.Files {
		if !used[f.Of] {
			wrong("%s is in %s and of nothing that is released", f.Name, LockFile)
		}
	}
	return errors.Join(errs...)
}

// Of returns the source packages of a package; none if it is not in the lock.
func (l Lock) Of(d debian.Deb) []debian.SourceVersion {
	for _, b := range l.Binaries {
		if b.Deb == d {
			return b.Sources
		}
	}
	return nil
}

// text is the content of the file SOURCES of what contains these packages: which source packages they are built of, and
// where these lie. what names it.
func (l Lock) text(version, what string, debs []debian.Deb) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "The sources of %s lie beside it in the release %s:\n\n", what, version)
	fmt.Fprintf(&out, "  %s   Rivulet, every Go module that is linked, and what builds them\n", TreeArchive(version))
	if len(debs) > 0 {
		fmt.Fprintf(&out, "  %s   the source packages of the Debian packages below\n\nEach package, and the source packages that it is built of:\n\n", PackageArchive(version))
	}
	for _, d := range debs {
		fmt.Fprintf(&out, "  %s %s %s:", d.Name, d.Version, d.Arch)
		for _, s := range l.Of(d) {
			fmt.Fprintf(&out, " %s", s)
		}
		out.WriteByte('\n')
	}
	return out.Bytes()
}

// PackageArchive is the file of a release with the source packages of Debian.
func PackageArchive(version string) string { return "rivulet-" + version + "-sources.tar" }

// TreeArchive is the file of a release with Rivulet's own source and its modules.
func TreeArchive(version string) string { return "rivulet-" + version + "-src.tar.zst" }

// OfBundle is the file SOURCES of a binary and its packages, by the release's name of the architecture; of all of them
// if that is empty.
func OfBundle(tree, version, arch string) ([]byte, error) {
	debs, err := Bundle(tree, strings.Replace(arch, "armv7", "armhf", 1))
	if err == nil && len(debs) == 0 {
		err = fmt.Errorf("%s has no packages for %s", BundleList, arch)
	}
	return text(tree, version, "rivulet", debs, err)
}

// OfImage is the file SOURCES of a device image, which has a bundle inside.
func OfImage(tree, version, arch string) ([]byte, error) {
	debs, err := Bundle(tree, arch)
	if err != nil {
		return nil, err
	}
	image, err := Image(tree, arch)
	return text(tree, version, "this image", append(debs, image...), err)
}

// OfAll is the file SOURCES of a release.
func OfAll(tree, version string) ([]byte, error) {
	debs, err := All(tree)
	return text(tree, version, "all files", debs, err)
}

func text(tree, version, what string, debs []debian.Deb, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	l, err := Read(tree)
	if err != nil {
		return nil, err
	}
	return l.text(version, what, debs), nil
}

// OfGo is the file SOURCES of what has nothing of Debian's.
func OfGo(version, what string) []byte { return Lock{}.text(version, what, nil) }
