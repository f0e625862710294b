package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
)

// deb is one pinned Debian package.
type deb struct {
	arch    string // as Debian says it
	name    string
	version string
	sha256  string // hex, of the whole file
}

func (d deb) String() string { return d.name + " " + d.version + " (" + d.arch + ")" }

// file is the package's name as apt-get download writes it.
func (d deb) file() string {
	return d.name + "_" + strings.ReplaceAll(d.version, ":", "%3a") + "_" + d.arch + ".deb"
}

// wanted are the packages of every architecture: the programs and libraries of
// iptables, and what runc is linked with.
var wanted = []string{"iptables", "libc6", "libip4tc2", "libip6tc2", "libmnl0", "libnftnl11", "libseccomp-dev", "libxtables12"}

// debian maps GOARCH to what Debian calls the architecture and its folder of libraries.
var debian = map[string]struct{ arch, triplet string }{
	"amd64": {"amd64", "x86_64-linux-gnu"},
	"arm64": {"arm64", "aarch64-linux-gnu"},
	"arm":   {"armhf", "arm-linux-gnueabihf"},
}

func parse(text []byte) (all []deb, err error) {
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
		d := deb{f[0], f[1], f[2], f[3]}
		if raw, err := hex.DecodeString(d.sha256); err != nil || len(raw) != 32 {
			return nil, fmt.Errorf("line %d: %q is not a SHA-256", n, d.sha256)
		}
		if seen[d.arch+" "+d.name] {
			return nil, fmt.Errorf("line %d: %s is there twice for %s", n, d.name, d.arch)
		}
		seen[d.arch+" "+d.name] = true
		all = append(all, d)
	}
	return all, nil
}

// pinned are the packages of one architecture, in the order of wanted.
func pinned(path, arch string) (some []deb, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
next:
	for _, name := range wanted {
		for _, d := range all {
			if d.arch == arch && d.name == name {
				some = append(some, d)
				continue next
			}
		}
		return nil, fmt.Errorf("%s names no %s for %s; %s", path, name, arch, renew)
	}
	return some, nil
}

// renew is the cure when a mirror no longer has what is pinned.
const renew = "take what apt offers now with `make bundle-pins`, read the diff of image/bundle/debs.list and commit it"

const head = `# Debian packages that make parts of the bundle: architecture, package, version, SHA-256.
# Written by make bundle-pins; every package is checked against it. See docs/bundle.md.
`

func format(all []deb) []byte {
	var out bytes.Buffer
	out.WriteString(head)
	for _, d := range all {
		fmt.Fprintf(&out, "%s %s %s %s\n", d.arch, d.name, d.version, d.sha256)
	}
	return out.Bytes()
}
