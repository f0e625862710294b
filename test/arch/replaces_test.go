package arch

import (
	"os"
	"regexp"
	"testing"
)

var (
	replaced = regexp.MustCompile(`(?m)^\t(\S+) => (\S+ \S+)`)
	required = regexp.MustCompile(`(?m)^\t(\S+) (v\S+)`)
)

// Upstream's tests are built of the same versions as the product: replaces are not
// transitive, so test/programs/conformance has its own copy.
func TestConformanceHasOurVersions(t *testing.T) {
	read := func(file string, line *regexp.Regexp) map[string]string {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, m := range line.FindAllStringSubmatch(string(raw), -1) {
			out[m[1]] = m[2]
		}
		return out
	}
	ours, theirs := read("../../go.mod", replaced), read("../programs/conformance/go.mod", replaced)
	if len(ours) < 50 {
		t.Fatalf("go.mod has %d replaces", len(ours))
	}
	const sample = "k8s.io/sample-apiserver" // nothing of the product needs it
	delete(ours, sample)
	delete(theirs, sample)
	for module, to := range ours {
		if theirs[module] != to {
			t.Errorf("test/programs/conformance/go.mod replaces %s by %q; ours by %q: copy the line", module, theirs[module], to)
		}
	}
	for module := range theirs {
		if ours[module] == "" {
			t.Errorf("test/programs/conformance/go.mod replaces %s; ours does not: remove the line", module)
		}
	}
	ours, theirs = read("../../go.mod", required), read("../programs/conformance/go.mod", required)
	for module, version := range theirs {
		if ours[module] != "" && ours[module] != version {
			t.Errorf("test/programs/conformance/go.mod requires %s %s, ours %s: go mod tidy there", module, version, ours[module])
		}
	}
}
