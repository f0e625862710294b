package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"rivulet/test/harness/tree"
)

// page is where check all writes what it found; docs/design/release.md shows it.
const page = "docs/reference/suites.md"

// inARow is how often a suite has to pass before its failure blocks.
const inARow = 5

// all runs the suites with these names, or all suites and the claims, and writes the page.
// Suites that were not asked for keep their lines.
func (c *checker) all(names []string) error {
	if err := c.suites.known(names); err != nil {
		return err
	}
	commit, err := git("describe", "--always", "--abbrev=8", "--dirty", "--match=")
	if err != nil {
		return err
	}
	rows, err := readPage(tree.Path(page))
	if err != nil {
		return err
	}
	for _, x := range c.suites.Suites {
		if len(names) > 0 && !slices.Contains(names, x.Name) {
			continue
		}
		r, err := c.suite(x)
		if err != nil {
			return err
		}
		row := rows[x.Name].after(r, commit)
		rows[x.Name] = row
		if row.inARow >= inARow && x.Blocks == "" {
			fmt.Printf("check: %s has passed %d times in a row: let it block, by blocks: %s in test/suites.yaml\n", x.Name, row.inARow, commit)
		}
		if err := os.WriteFile(tree.Path(page), []byte(c.page(rows)), 0o644); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		if err := c.runClaims(); err != nil {
			return err
		}
	}
	return c.done()
}

func (s suites) known(names []string) error {
	for _, name := range names {
		if !s.has(name) {
			var all []string
			for _, x := range s.Suites {
				all = append(all, x.Name)
			}
			return fmt.Errorf("there is no suite %q: %s", name, strings.Join(all, ", "))
		}
	}
	return nil
}

// row is a line of the page.
type row struct {
	minutes, result, commit string
	inARow                  int
}

// after is the row once r was found at commit. What was skipped proves nothing either way.
func (w row) after(r result, commit string) row {
	w.minutes, w.commit = fmt.Sprintf("%.1f", r.Seconds/60), commit
	w.result = strings.TrimSpace(string(r.State) + " " + r.Note)
	switch r.State {
	case passed:
		w.inARow++
		w.result = fmt.Sprintf("pass, %d tests", r.Passed)
		if r.Skipped > 0 {
			w.result += fmt.Sprintf(", %d skipped", r.Skipped)
		}
	case failed, red:
		w.inARow = 0
		w.result = "**fail** " + strings.ReplaceAll(r.Note, "|", "/")
	}
	return w
}

var pageRow = regexp.MustCompile(`^\| ([a-z0-9]+) \| ([0-9.]*) \| ([^|]*) \| ([0-9a-z-]*) \| ([0-9]+) \|`)

func readPage(file string) (map[string]row, error) {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	rows := map[string]row{}
	for line := range strings.Lines(string(text)) {
		if m := pageRow.FindStringSubmatch(line); m != nil {
			n, _ := strconv.Atoi(m[5]) // digits
			rows[m[1]] = row{minutes: m[2], result: m[3], commit: m[4], inARow: n}
		}
	}
	return rows, nil
}

func (c *checker) page(rows map[string]row) string {
	var b strings.Builder
	b.WriteString(`# The device suites, as they ran last

Written by ` + "`make test-all`" + `; do not edit. [check.md](../design/check.md) says what each result means. A suite blocks a submission once it has passed five times in a row on two cores.

| suite | minutes | result | commit | passes in a row | blocks | guards |
|---|---|---|---|---|---|---|
`)
	for _, x := range c.suites.Suites {
		w, ran := rows[x.Name]
		if !ran {
			w.result = "did not run"
		}
		blocks := "no"
		if x.Blocks != "" {
			blocks = "since " + x.Blocks
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %d | %s | %s |\n", x.Name, w.minutes, w.result, w.commit, w.inARow, blocks, strings.Join(x.Guards, ", "))
	}
	return b.String()
}

func (c *checker) claims() error {
	if err := c.runClaims(); err != nil {
		return err
	}
	return c.done()
}

var shownBy = regexp.MustCompile("`([a-z0-9/]+)` (Test[A-Za-z0-9_]+)")

const securityPage = "docs/design/security.md"

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

// runClaims runs every test that the security page names, by its name. One that skips or
// is not there has shown nothing: the claim fails.
func (c *checker) runClaims() error {
	text, err := os.ReadFile(tree.Path(securityPage))
	if err != nil {
		return err
	}
	named := namedTests(string(text))
	var packages []string
	for p := range named {
		packages = append(packages, p)
	}
	slices.Sort(packages)
	for _, p := range packages {
		began := time.Now()
		tests, err := c.byName(p, named[p])
		if err != nil {
			return err
		}
		r := result{Kind: "claims", Name: p, State: passed}
		var bad []string
		for _, name := range named[p] {
			if tests[name] == "pass" {
				r.Passed++
				continue
			}
			r.Failed++
			bad = append(bad, strings.TrimSpace(name+" "+tests[name]))
		}
		if r.Seconds = time.Since(began).Seconds(); len(bad) > 0 {
			r.State, r.Note = failed, strings.Join(bad, ", ")
		}
		if err := c.note(r); err != nil {
			return err
		}
	}
	return nil
}
