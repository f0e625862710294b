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

// FetchSources downloads the missing files to dir, with the pinned hashes. It keeps those that came if others did not, and
// the folder keeps what a mirror may replace.
func (a *Apt) FetchSources(files []SourceFile, dir string) error {
	var missing []SourceFile
	download := []string{"-q", "source", "--download-only", "--only-source"}
	for _, f := range files {
		if err := check(filepath.Join(dir, f.Name), f.SHA256); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, f)
			if s := f.Of.String(); !slices.Contains(download, s) {
				download = append(download, s)
			}
		} else if err != nil {
			return err
		}
	}
	if len(missing) == 0 {
		return nil
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
	_, _ = a.run(fresh, "apt-get", download...) // what came is kept, and what did not is named below
	var lost []string
	for _, f := range missing {
		switch err := check(filepath.Join(fresh, f.Name), f.SHA256); {
		case errors.Is(err, fs.ErrNotExist):
			lost = append(lost, f.Name)
		case err != nil:
			return err
		default:
			if err := os.Rename(filepath.Join(fresh, f.Name), filepath.Join(dir, f.Name)); err != nil {
				return err
			}
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("the archive does not serve %d files of sources (%s)%s; put them into %s, or have /etc/apt name a mirror that has them; if it has replaced their version, %s",
			len(lost), strings.Join(lost[:min(3, len(lost))], ", "), a.output, dir, a.renew)
	}
	return nil
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
