package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"rivulet/test/harness/tree"
)

// Each table of the security page has a fault, which can be made, and which a test of that
// table has to notice; so has the guide.
func TestEachGroupHasAFault(t *testing.T) {
	all, err := read()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(tree.Path("docs", "design", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]string{"guide": "`test/suites/guide` TestTheGuide"}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		if heading, text, _ := strings.Cut(section, "\n"); strings.Contains(text, "| cannot | test |") {
			left[heading] = text
		}
	}
	if len(left) < 10 {
		t.Fatalf("the page is not read as it is written: %d tables", len(left))
	}
	groups := map[string]string{}
	for heading, text := range left {
		groups[heading] = text
	}
	for _, m := range all {
		text, known := groups[m.Group]
		if !known {
			t.Errorf("there is no table %q", m.Group)
			continue
		}
		delete(left, m.Group)
		folder, name, _ := strings.Cut(m.Test, " ")
		name, _, _ = strings.Cut(name, "/")
		if !regexp.MustCompile("`" + folder + "` " + name + `\b`).MatchString(text) {
			t.Errorf("%s: its table does not name `%s` %s", m.Group, folder, name)
		}
		file, err := os.ReadFile(tree.Path(m.File))
		if err != nil {
			t.Error(err)
		} else if _, err := m.apply(string(file)); err != nil {
			t.Errorf("%s: %v", m.Group, err)
		}
	}
	for heading := range left {
		t.Errorf("%q has no fault in %s", heading, table)
	}
}
