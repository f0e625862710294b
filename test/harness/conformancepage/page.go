// Package conformancepage is the page with the results of upstream's conformance tests. It is
// outside the module of test/programs/conformance, so that its test runs with all others.
package conformancepage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The runs.
const (
	Home   = "home"
	Away   = "away"
	Inside = "inside"
)

// Runs are all of them, in the order of the page.
var Runs = []string{Home, Away, Inside}

// Result is how a test ended.
type Result struct {
	State string // one of those below
	Why   string // of one that is not green
}

// What the page has of a test in a run.
const (
	Passes  = "passes"
	Fails   = "fails"
	Refused = "refused" // it needs the node itself: the pod has event OffloadRefused, or admission names the reason
	Pinned  = "pinned"  // it places its pods on a node of home, where an offloaded pod may not run
	Skips   = "skips"   // the test found that it does not apply
	unknown = "—"
)

// row is a test on the page.
type row struct {
	state map[string]string // by run
	why   string            // why it is not green, written by hand or as the test had it
}

// Page is what is known of all tests that have been run, by name.
type Page map[string]*row

const head = `# Kubernetes conformance

Upstream's end-to-end tests of the pinned Kubernetes on two devices of a lab. This page is written by ` + "`make conformance`" + `
([how](../design/conformance.md)); only the last column is for hands.

*home*: device a, nothing offloaded. *away*: every namespace of a is offloaded to b (` + "`rivulet.dev/offload=remote`" + `). *inside*: a virtual cluster on a.
**passes**; **refused**: the test needs the node itself (host network, host ports, host paths, privileged), which event OffloadRefused says by name;
**pinned**: the test places its pods on device a by a label of the node, where no pod of an offloaded namespace may run: event FailedScheduling says so of all nodes;
**fails**, with the reason; **skips**: the test found that it does not apply here; **—**: not run yet.

`

// A line of the tables: name, home, away, inside, why.
var line = regexp.MustCompile(`^\| (\[sig-.*?) \| (\S+) \| (\S+) \| (\S+) \| (.*?) ?\|$`)

// Read reads the page; one that is not there is empty.
func Read(file string) (Page, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Page{}, nil
	}
	return parse(string(raw)), err
}

func parse(text string) Page {
	p := Page{}
	for l := range strings.Lines(text) {
		if m := line.FindStringSubmatch(strings.TrimSpace(l)); m != nil {
			p[m[1]] = &row{map[string]string{Home: m[2], Away: m[3], Inside: m[4]}, m[5]}
		}
	}
	return p
}

// Write writes the page.
func (p Page) Write(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, p.text(), 0o644)
}

// green is what a test may be without anybody having to look at it.
func green(state string) bool { return state == Passes || state == Skips }

// Take notes how tests ended and returns the red ones: those that were green or have not
// been run before. What becomes red is noted only if that is accepted.
func (p Page) Take(run string, results map[string]Result, accept bool) (red []string) {
	for _, name := range slices.Sorted(maps.Keys(results)) {
		now := results[name]
		r := p[name]
		if r == nil {
			r = &row{state: map[string]string{Home: unknown, Away: unknown, Inside: unknown}}
			p[name] = r
		}
		before := r.state[run]
		if !green(now.State) && (green(before) || before == unknown) || now.State == Skips && before == Passes {
			red = append(red, fmt.Sprintf("%s: %s: %s", run, name, now.Why))
			if !accept {
				continue
			}
		}
		if (before == Refused || before == Pinned) && now.State == Fails {
			red = append(red, fmt.Sprintf("%s: %s: has failed in another way than it does: %s", run, name, now.Why))
			continue
		}
		r.state[run] = now.State
		rest := slices.DeleteFunc(slices.Clone(Runs), func(other string) bool { return r.state[other] == Passes || r.state[other] == unknown })
		switch {
		case len(rest) == 0:
			r.why = ""
		case now.State != Passes && r.why == "":
			r.why = strings.NewReplacer("|", "\\|", "\t", " ").Replace(now.Why)
		}
	}
	return red
}

func (p Page) text() []byte {
	var b bytes.Buffer
	b.WriteString(head)
	groups := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(p)) {
		sig, _, _ := strings.Cut(strings.TrimPrefix(name, "["), "]")
		groups[sig] = append(groups[sig], name)
	}
	b.WriteString("| group | tests | pass at home | pass away | refused away | pinned away | fail away | pass inside | refused inside | pinned inside | fail inside |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	all := slices.Collect(maps.Keys(p))
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		fmt.Fprintf(&b, "| %s | %s |\n", g, p.counts(groups[g]))
	}
	fmt.Fprintf(&b, "| all | %s |\n", p.counts(all))
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		fmt.Fprintf(&b, "\n## %s\n\n| test | home | away | inside | why not |\n|---|---|---|---|---|\n", g)
		for _, name := range groups[g] {
			r := p[name]
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", name, r.state[Home], r.state[Away], r.state[Inside], r.why)
		}
	}
	return b.Bytes()
}

func (p Page) counts(names []string) string {
	n := map[string]int{}
	for _, name := range names {
		for run, state := range p[name].state {
			n[run+state]++
		}
	}
	return fmt.Sprintf("%d | %d | %d | %d | %d | %d | %d | %d | %d | %d", len(names), n[Home+Passes], n[Away+Passes], n[Away+Refused], n[Away+Pinned], n[Away+Fails],
		n[Inside+Passes], n[Inside+Refused], n[Inside+Pinned], n[Inside+Fails])
}
