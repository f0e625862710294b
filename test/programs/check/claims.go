package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"rivulet/test/harness/tree"
)

var shownBy = regexp.MustCompile("`([a-z0-9/]+)` (Test[A-Za-z0-9_]+)")

const securityPage, dataPage = "docs/design/security.md", "docs/design/data.md"

// namedTests are the tests that a text names, by package.
func namedTests(text string) map[string][]string {
	named := map[string][]string{}
	for _, m := range shownBy.FindAllStringSubmatch(text, -1) {
		if p := "rivulet/" + m[1]; !slices.Contains(named[p], m[2]) {
			named[p] = append(named[p], m[2])
		}
	}
	return named
}

// claims compares the tests that the pages on security and data name with what has run since check start. One
// that was skipped, or is not there, has shown nothing: the claim fails. A package or suite that did
// not run leaves its claims open.
func (c *checker) claims() error {
	var text []byte
	for _, page := range []string{securityPage, dataPage} {
		more, err := os.ReadFile(tree.Path(page))
		if err != nil {
			return err
		}
		text = append(text, more...)
	}
	all, _, err := c.recorded()
	if err != nil {
		return err
	}
	ran := map[string]map[string]string{}
	for _, r := range all {
		name := r.Name
		if r.Kind == "suite" {
			name = "rivulet/" + suiteFolder(name)
		}
		if r.Tests == nil || r.State == notJudged {
			continue
		}
		if ran[name] == nil {
			ran[name] = map[string]string{}
		}
		for test, ended := range r.Tests {
			ran[name][test] = ended
		}
	}
	r := result{Kind: "claims", Name: securityPage, State: passed}
	var bad, open []string
	for p, tests := range namedTests(string(text)) {
		for _, name := range tests {
			switch ended, found := ran[p][name]; {
			case ended == "pass":
				r.Passed++
			case ran[p] == nil, !found && c.suites.has(strings.TrimPrefix(p, "rivulet/"+suiteFolder("")+"/")): // make test runs a part of e2e
				open = append(open, strings.TrimPrefix(p, "rivulet/"))
			default:
				r.Failed++
				bad = append(bad, strings.TrimSpace(p+" "+name+" "+ended))
			}
		}
	}
	slices.Sort(bad)
	slices.Sort(open)
	if len(bad) > 0 {
		r.State, r.Note = failed, strings.Join(bad, ", ")
	} else if open := slices.Compact(open); len(open) > 0 {
		r.Note = fmt.Sprintf("%d claims; those of %s did not run", r.Passed, strings.Join(open, ", "))
	}
	r.Passed, r.Failed = 0, 0 // they are in the table already
	if err := c.note(r); err != nil {
		return err
	}
	return c.done()
}
