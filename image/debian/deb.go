// Package debian fetches pinned Debian packages of any architecture from the package sources of the build host, which
// may have another architecture. It reads the host's sources and alone writes the folders it is given: apt's own lists,
// and the packages. Failure: a package whose hash is not the pinned one is an error and is never used.
package debian

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Deb is one pinned Debian package.
type Deb struct {
	Arch    string // Debian's name, or "all"
	Name    string
	Version string
	SHA256  string // hex, of the whole file
}

func (d Deb) String() string { return d.Name + " " + d.Version + " (" + d.Arch + ")" }

// File is the file name that apt-get download gives the package.
func (d Deb) File() string {
	return d.Name + "_" + strings.ReplaceAll(d.Version, ":", "%3a") + "_" + d.Arch + ".deb"
}

// Parse reads a list of pinned packages: architecture, name, version, SHA-256.
func Parse(text []byte) (all []Deb, err error) {
	seen := map[string]bool{}
	n := 0
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		n++
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 4 {
			return nil, fmt.Errorf("line %d has %d words; it is: architecture package version sha256", n, len(f))
		}
		d := Deb{f[0], f[1], f[2], f[3]}
		if err := CheckSHA256(d.SHA256); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if seen[d.Arch+" "+d.Name] {
			return nil, fmt.Errorf("line %d: %s is there twice for %s", n, d.Name, d.Arch)
		}
		seen[d.Arch+" "+d.Name] = true
		all = append(all, d)
	}
	return all, nil
}

// Format writes what Parse reads, below the comment head.
func Format(head string, all []Deb) []byte {
	var out bytes.Buffer
	out.WriteString(head)
	for _, d := range all {
		fmt.Fprintf(&out, "%s %s %s %s\n", d.Arch, d.Name, d.Version, d.SHA256)
	}
	return out.Bytes()
}

// Cache is the folder of the pinned packages, which all work trees share.
func Cache() (string, error) {
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "rivulet", "debs"), err
}

// sources reads a control file: the source that the package was built from, and then those that are compiled into it.
func sources(text string) (all []SourceVersion, err error) {
	fields := map[string]string{}
	for line := range strings.Lines(strings.ReplaceAll(text, "\n ", " ")) {
		key, value, _ := strings.Cut(line, ":")
		fields[key] = strings.TrimSpace(value)
	}
	own := SourceVersion{fields["Package"], fields["Version"]}
	if name, version, ok := strings.Cut(fields["Source"], " ("); name != "" {
		own.Name = name
		if ok {
			own.Version = strings.TrimSuffix(version, ")")
		}
	}
	all = append(all, own)
	for _, one := range strings.Split(fields["Built-Using"]+","+fields["Static-Built-Using"], ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		name, version, ok := strings.Cut(one, " (= ")
		if !ok {
			return nil, fmt.Errorf("%s is built using %q, which is no exact version", own.Name, one)
		}
		if s := (SourceVersion{name, strings.TrimSuffix(version, ")")}); !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all, nil
}
