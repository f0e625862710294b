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

// Source is one archive of the build host: its location and the keyring of its signatures.
type Source struct {
	URI     string
	Keyring string
	Suites  []string
}

// HostSources reads the host's own sources, in both formats of apt.
func HostSources(root string) ([]Source, error) {
	var all []Source
	files, err := filepath.Glob(filepath.Join(root, "sources.list.d/*"))
	if err != nil {
		return nil, err
	}
	for _, f := range append([]string{filepath.Join(root, "sources.list")}, files...) {
		raw, err := os.ReadFile(f)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		switch filepath.Ext(f) {
		case ".list":
			all = append(all, oneLine(raw)...)
		case ".sources":
			all = append(all, stanzas(raw)...)
		}
	}
	return all, nil
}

func oneLine(raw []byte) (all []Source) {
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		s := Source{}
		if options, after, found := strings.Cut(rest, "]"); found && strings.HasPrefix(strings.TrimSpace(options), "[") {
			rest = after
			for _, o := range strings.Fields(strings.Trim(options, "[ ")) {
				if key, value, _ := strings.Cut(o, "="); key == "signed-by" {
					s.Keyring = value
				}
			}
		}
		if f := strings.Fields(rest); len(f) >= 2 {
			s.URI, s.Suites = strings.TrimSuffix(f[0], "/"), f[1:2]
			all = append(all, s)
		}
	}
	return all
}

func stanzas(raw []byte) (all []Source) {
	for _, text := range strings.Split(string(raw), "\n\n") {
		s, types, uris := Source{}, "", []string(nil)
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			value = strings.TrimSpace(value)
			switch key {
			case "Types":
				types = value
			case "URIs":
				uris = strings.Fields(value)
			case "Suites":
				s.Suites = strings.Fields(value)
			case "Signed-By":
				s.Keyring = value
			}
		}
		if !slices.Contains(strings.Fields(types), "deb") {
			continue
		}
		for _, u := range uris {
			one := s
			one.URI = strings.TrimSuffix(u, "/")
			all = append(all, one)
		}
	}
	return all
}

// debianKeyring has the keys of Debian's own suites, newer ones included.
const debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Suites makes lines for apt that name another release of Debian on the host's mirrors of the main archive and of the
// security archive.
func Suites(host []Source, release string, components ...string) (string, error) {
	main, security := "", ""
	for _, s := range host {
		if s.Keyring != "" && !strings.Contains(s.Keyring, "debian-archive") {
			continue // another vendor's archive
		}
		for _, suite := range s.Suites {
			switch {
			case strings.Contains(suite, "security"):
				security = s.URI
			case !strings.ContainsAny(suite, "/-") && main == "":
				main = s.URI
			}
		}
	}
	if main == "" {
		return "", fmt.Errorf("the apt sources of this machine name no Debian archive; build on Debian, or add one to /etc/apt/sources.list")
	}
	var out strings.Builder
	line := func(uri, suite string) {
		fmt.Fprintf(&out, "deb [signed-by=%s] %s %s %s\n", debianKeyring, uri, suite, strings.Join(components, " "))
	}
	line(main, release)
	line(main, release+"-updates")
	line(main, release+"-backports")
	if security != "" {
		line(security, release+"-security")
	}
	return out.String(), nil
}
