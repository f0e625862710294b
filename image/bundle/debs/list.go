package main

import (
	"fmt"
	"slices"

	"rivulet/image/debian"
	"rivulet/image/sources"
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

// pinned returns the packages of one architecture in the list of a tree, in the order of wanted.
func pinned(tree, arch string) (some []debian.Deb, err error) {
	all, err := sources.Bundle(tree, arch)
	if err != nil {
		return nil, err
	}
	for _, name := range wanted {
		i := slices.IndexFunc(all, func(d debian.Deb) bool { return d.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("%s names no %s for %s; %s", sources.BundleList, name, arch, renew)
		}
		some = append(some, all[i])
	}
	return some, nil
}

// renew is the cure if a mirror no longer has the pinned packages.
const renew = "take what apt offers now with `make bundle-pins`, read the diff of image/bundle/debs.list and commit it"

const head = `# Debian packages that make parts of the bundle: architecture, package, version, SHA-256.
# Written by make bundle-pins; every package is checked against it. See docs/design/bundle.md.
`
