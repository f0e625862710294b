package signed

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// RootsFile is what the build links in, as a path in the repository.
const RootsFile = "image/signed/roots"

// Published is the content of RootsFile: whom the binaries of a tree trust.
type Published struct {
	Roots  []Root
	Oldest int // the lowest generation
}

// Root is a public root key and what its holders call it.
type Root struct {
	Key  ed25519.PublicKey
	Name string
}

// Text is the key as it is written in all files: base64.
func (r Root) Text() string { return base64.StdEncoding.EncodeToString(r.Key) }

// ReadRoots reads RootsFile.
func ReadRoots(file string) (Published, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return Published{}, fmt.Errorf("signed: %w", err)
	}
	p, err := ParseRoots(string(raw))
	if err != nil {
		return Published{}, fmt.Errorf("signed: %s: %w; write it as its first lines say", file, err)
	}
	return p, nil
}

// ParseRoots reads the text of RootsFile.
func ParseRoots(text string) (p Published, err error) {
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		switch f := strings.Fields(line); {
		case len(f) == 0 || strings.HasPrefix(f[0], "#"):
		case len(f) == 2 && f[0] == "generation" && p.Oldest == 0:
			if p.Oldest, err = strconv.Atoi(f[1]); err != nil || p.Oldest < 1 {
				return p, fmt.Errorf("%q is no generation", f[1])
			}
		case len(f) > 2 && f[0] == "root":
			key, err := base64.StdEncoding.DecodeString(f[1])
			if err != nil || len(key) != ed25519.PublicKeySize {
				return p, fmt.Errorf("%q is no public key", f[1])
			}
			if seen[f[1]] {
				return p, fmt.Errorf("%s is there twice", f[1])
			}
			seen[f[1]] = true
			p.Roots = append(p.Roots, Root{key, strings.Join(f[2:], " ")})
		default:
			return p, fmt.Errorf("%q is no line of it", strings.TrimSpace(line))
		}
	}
	if p.Oldest == 0 {
		return p, fmt.Errorf("it has no generation")
	}
	return p, nil
}

// Keys are the root keys as the build links them in.
func (p Published) Keys() string {
	var all []string
	for _, r := range p.Roots {
		all = append(all, r.Text())
	}
	return strings.Join(all, ",")
}

// Trust is that of a binary that is built from the file.
func (p Published) Trust() Trust {
	t := Trust{Oldest: p.Oldest}
	for _, r := range p.Roots {
		t.Roots = append(t.Roots, r.Key)
	}
	return t
}
