package debian

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/image/filesum"
)

// SourceVersion names a source package.
type SourceVersion struct{ Name, Version string }

func (s SourceVersion) String() string { return s.Name + "=" + s.Version }

// SourceFile is a file of a source package.
type SourceFile struct {
	Of     SourceVersion
	Name   string
	SHA256 string // hex
}

// WithSources adds the archives of source packages to lines that Suites made.
func WithSources(lines string) string {
	return lines + strings.ReplaceAll("\n"+lines, "\ndeb ", "\ndeb-src ")[1:]
}

// SourcesOf returns the source packages that each package is built of: its own, and those that it contains parts of by
// the fields Built-Using and Static-Built-Using.
func (a *Apt) SourcesOf(debs []Deb) (map[Deb][]SourceVersion, error) {
	if err := a.update(); err != nil {
		return nil, err
	}
	show := []string{"show"}
	for _, d := range debs {
		show = append(show, d.Name+"="+d.Version)
	}
	text, err := a.run(a.dir, "apt-cache", show...)
	if err != nil {
		return nil, fmt.Errorf("%w%s; %s", err, a.output, a.renew)
	}
	all := map[Deb][]SourceVersion{}
	for one := range strings.SplitSeq(string(text), "\n\n") {
		i := slices.IndexFunc(debs, func(d Deb) bool { return strings.Contains("\n"+one+"\n", "\nSHA256: "+d.SHA256+"\n") })
		if i < 0 {
			continue // another archive's of the same version
		}
		if all[debs[i]], err = sources(one); err != nil {
			return nil, err
		}
	}
	for _, d := range debs {
		if len(all[d]) == 0 {
			return nil, fmt.Errorf("%s is not offered with its hash%s; %s", d, a.output, a.renew)
		}
	}
	return all, nil
}

// SourceFiles returns the files of source packages, in their order; apt has checked the signatures of the archives.
func (a *Apt) SourceFiles(sources []SourceVersion) (all []SourceFile, err error) {
	if err := a.update(); err != nil {
		return nil, err
	}
	show := []string{"showsrc", "--only-source"}
	for _, s := range sources {
		show = append(show, s.Name)
	}
	text, err := a.run(a.dir, "apt-cache", show...)
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, a.output)
	}
	offered := map[SourceVersion]string{}
	for _, f := range records(text) {
		offered[SourceVersion{f["Package"], f["Version"]}] = f["Checksums-Sha256"]
	}
	for _, s := range sources {
		words := strings.Fields(offered[s]) // hash, size, name
		if len(words) == 0 || len(words)%3 != 0 {
			return nil, fmt.Errorf("the archive has no sources of %s%s; %s", s, a.output, a.renew)
		}
		for f := range slices.Chunk(words, 3) {
			all = append(all, SourceFile{s, f[2], f[0]})
		}
	}
	return all, nil
}

// FetchSources downloads the missing files to dir, with the pinned hashes: from the mirrors, and what these lack from the
// archive of all versions. It keeps those that came if others did not, and names all others with their reasons.
func (a *Apt) FetchSources(files []SourceFile, dir string) error {
	missing, err := lacking(files, dir)
	if err != nil || len(missing) == 0 {
		return err
	}
	if err := a.update(); err != nil {
		return fmt.Errorf("%s is needed and %w; build on Debian, or put the file with the SHA-256 %s into %s", missing[0].Name, err, missing[0].SHA256, dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(dir, ".fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	// All at once. Then one package at a time: apt gives up all of them for one version that it does not know.
	all := packagesOf(missing)
	wrong := map[SourceFile]error{}
	for i, some := range append([][]SourceVersion{all}, single(all)...) {
		if i > 0 && !slices.ContainsFunc(missing, func(f SourceFile) bool { return f.Of == some[0] }) {
			continue
		}
		if err := a.mirrored(some, files, dir, fresh); err != nil {
			return err
		}
		if missing, err = a.keep(missing, fresh, dir, wrong); err != nil {
			return err
		}
	}
	var lost []error
	for _, f := range missing {
		err := check(filepath.Join(dir, f.Name), f.SHA256) // of another source package that has it, too
		if errors.Is(err, fs.ErrNotExist) {
			if err = a.archive.source(f, filepath.Join(fresh, f.Name)); err == nil {
				err = moved(f, fresh, dir)
			}
		}
		if err != nil {
			if wrong[f] != nil {
				err = fmt.Errorf("of the mirrors: %w; of the archive: %w", wrong[f], err)
			}
			lost = append(lost, fmt.Errorf("  %s of %s, SHA-256 %s: %w", f.Name, f.Of, f.SHA256, err))
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("neither the mirrors nor the archive of all versions serve %d files of sources%s:\n%w\nThe others are kept; put these into %s, or have /etc/apt name a mirror that has them; if it has replaced their version, %s",
			len(lost), a.output, errors.Join(lost...), dir, a.renew)
	}
	return nil
}

// lacking returns the files that are not in dir. Another content than the pinned one there is an error.
func lacking(files []SourceFile, dir string) (missing []SourceFile, err error) {
	for _, f := range files {
		if err := check(filepath.Join(dir, f.Name), f.SHA256); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, f)
		} else if err != nil {
			return nil, err
		}
	}
	return missing, nil
}

func packagesOf(files []SourceFile) (all []SourceVersion) {
	for _, f := range files {
		if !slices.Contains(all, f.Of) {
			all = append(all, f.Of)
		}
	}
	return all
}

func single(all []SourceVersion) (each [][]SourceVersion) {
	for _, s := range all {
		each = append(each, []SourceVersion{s})
	}
	return each
}

// mirrored has apt download the files of source packages to fresh, but for those that are in dir. What does not come is
// missing there.
func (a *Apt) mirrored(some []SourceVersion, files []SourceFile, dir, fresh string) error {
	words := []string{"-q", "source", "--download-only", "--only-source"}
	for _, s := range some {
		words = append(words, s.String())
	}
	for _, f := range files {
		if !slices.Contains(some, f.Of) {
			continue
		}
		if err := os.Link(filepath.Join(dir, f.Name), filepath.Join(fresh, f.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	_, _ = a.run(fresh, "apt-get", words...)
	return nil
}

// keep moves the files that came to dir and returns those that are still missing. Why one that came is not taken is put
// into wrong.
func (a *Apt) keep(missing []SourceFile, fresh, dir string, wrong map[SourceFile]error) (still []SourceFile, err error) {
	for _, f := range missing {
		switch err := moved(f, fresh, dir); {
		case err == nil:
			continue
		case !errors.Is(err, fs.ErrNotExist):
			wrong[f] = err
			if err := os.Remove(filepath.Join(fresh, f.Name)); err != nil {
				return nil, err
			}
		}
		still = append(still, f)
	}
	return still, nil
}

// moved moves a file to dir if it has the pinned hash.
func moved(f SourceFile, fresh, dir string) error {
	got, _, err := filesum.SHA256(filepath.Join(fresh, f.Name))
	if err == nil && got != f.SHA256 {
		err = fmt.Errorf("it came with the SHA-256 %s", got)
	}
	if err != nil {
		return err
	}
	return os.Rename(filepath.Join(fresh, f.Name), filepath.Join(dir, f.Name))
}

// records parses what apt-cache shows: fields by name, the lines of each joined.
func records(text []byte) (all []map[string]string) {
	for one := range bytes.SplitSeq(bytes.TrimSpace(text), []byte("\n\n")) {
		fields, last := map[string]string{}, ""
		for line := range strings.Lines(string(one)) {
			if line = strings.TrimRight(line, "\n"); strings.HasPrefix(line, " ") {
				fields[last] += line
				continue
			}
			key, value, _ := strings.Cut(line, ":")
			last, fields[key] = key, strings.TrimSpace(value)
		}
		all = append(all, fields)
	}
	return all
}

// CheckSHA256 is an error if the text is no SHA-256 in hex.
func CheckSHA256(text string) error {
	if raw, err := hex.DecodeString(text); err != nil || len(raw) != 32 {
		return fmt.Errorf("%q is not a SHA-256", text)
	}
	return nil
}
