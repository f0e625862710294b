package main

import (
	"fmt"
	"os"
	"strings"

	"rivulet/image/signed"
)

const (
	securityPage = "SECURITY.md"
	keysHeading  = "## Root keys\n"
)

// rootsSection is the end of SECURITY.md.
func rootsSection(p signed.Published) string {
	var b strings.Builder
	b.WriteString(keysHeading + "\n")
	if len(p.Roots) == 0 {
		b.WriteString("None are published yet, as no release is. This section is written by `go run ./image/signed/sign roots`, when a maintainer has made them ([docs/design/keys.md](docs/design/keys.md)).\n")
		return b.String()
	}
	b.WriteString("Releases are signed by keys that one of these certifies. A public key is 44 characters, so it is its own fingerprint: compare it with what `rivulet version` says of the program that you have, and with `ROOT_KEYS` of `install.sh`.\n\n")
	for _, r := range p.Roots {
		fmt.Fprintf(&b, "- `%s` (%s)\n", r.Text(), r.Name)
	}
	fmt.Fprintf(&b, "\nThe lowest generation of a signing key that is taken: %d. Written by `go run ./image/signed/sign roots`; how keys are made, kept and replaced: [docs/design/keys.md](docs/design/keys.md).\n", p.Oldest)
	return b.String()
}

// writeRoots replaces the section in the page.
func writeRoots(page string) error {
	p, err := signed.ReadRoots(signed.RootsFile)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, _, found := strings.Cut(string(text), keysHeading)
	if !found {
		return fmt.Errorf("%s has no heading %q; add it at its end", page, strings.TrimSpace(keysHeading))
	}
	return os.WriteFile(page, []byte(before+rootsSection(p)), 0o644)
}
