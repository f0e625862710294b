package main

import (
	"fmt"
	"os"

	"rivulet/image/debian"
)

// wanted are the packages of every architecture: the programs and libraries of iptables, and the libraries that runc is
// linked with.
var wanted = []string{"iptables", "libc6", "libip4tc2", "libip6tc2", "libmnl0", "libnftnl11", "libseccomp-dev", "libxtables12"}

// targets maps GOARCH to Debian's name of the architecture and its folder of libraries.
var targets = map[string]struct{ arch, triplet string }{
	"amd64": {"amd64", "x86_64-linux-gnu"},
	"arm64": {"arm64", "aarch64-linux-gnu"},
	"arm":   {"armhf", "arm-linux-gnueabihf"},
}

// pinned returns the packages of one architecture, in the order of wanted.
func pinned(path, arch string) (some []debian.Deb, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all, err := debian.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
next:
	for _, name := range wanted {
		for _, d := range all {
			if d.Arch == arch && d.Name == name {
				some = append(some, d)
				continue next
			}
		}
		return nil, fmt.Errorf("%s names no %s for %s; %s", path, name, arch, renew)
	}
	return some, nil
}

// renew is the cure if a mirror no longer has the pinned packages.
const renew = "take what apt offers now with `make bundle-pins`, read the diff of image/bundle/debs.list and commit it"

const head = `# Debian packages that make parts of the bundle: architecture, package, version, SHA-256.
# Written by make bundle-pins; every package is checked against it. See docs/design/bundle.md.
`
