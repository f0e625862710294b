package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The table of traps in docs/design/offload.md names tests that there are, for each of the 25.
func TestEveryTrapHasItsTest(t *testing.T) {
	raw, err := os.ReadFile("../../docs/design/offload.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(raw), "\n## Traps\n")
	table, _, _ = strings.Cut(table, "\n## ")
	row := regexp.MustCompile(`^\| \d+ \| [^|]+ \| (.+) \|$`)
	named := regexp.MustCompile("`([a-z0-9/]+)` (Test[A-Za-z0-9]+)")
	rows := 0
	for line := range strings.Lines(table) {
		m := row.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		rows++
		tests := named.FindAllStringSubmatch(m[1], -1)
		if len(tests) == 0 {
			t.Errorf("no test in: %s", line)
		}
		for _, n := range tests {
			if !defined(t, n[1], n[2]) {
				t.Errorf("%s has no %s, which docs/design/offload.md names", n[1], n[2])
			}
		}
	}
	if rows != 31 {
		t.Errorf("%d traps, not 31", rows)
	}
}

// defined reports whether a package has a test function of that name.
func defined(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(dir), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
