package main

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

// What the page has of a test in a run.
const (
	passes  = "passes"
	fails   = "fails"
	refused = "refused" // it needs the node itself: the pod has event OffloadRefused
	pinned  = "pinned"  // it places its pods on a node of home, where an offloaded pod may not run
	skips   = "skips"   // the test found that it does not apply
	unknown = "—"
)

// row is a test on the page.
type row struct {
	state map[string]string // by run
	why   string            // why it is not green, written by hand or as the test had it
}

// page is what is known of all tests that have been run, by name.
type page map[string]*row

const head = `# Kubernetes conformance

Upstream's end-to-end tests of the pinned Kubernetes on two devices of a lab. This page is written by ` + "`make conformance`" + `
([how](../design/conformance.md)); only the last column is for hands.

*home*: device a, nothing offloaded. *away*: every namespace of a is offloaded to b (` + "`rivulet.dev/offload=remote`" + `).
**passes**; **refused**: the test needs the node itself (host network, host ports, host paths, privileged), which event OffloadRefused says by name;
**pinned**: the test places its pods on device a by a label of the node, where no pod of an offloaded namespace may run: event FailedScheduling says so of all nodes;
**fails**, with the reason; **skips**: the test found that it does not apply here; **—**: not run yet.

`

// A line of the tables: name, home, away, why.
var line = regexp.MustCompile(`^\| (\[sig-.*?) \| (\S+) \| (\S+) \| (.*?) ?\|$`)

func readPage(file string) (page, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return page{}, nil
	}
	return parsePage(string(raw)), err
}

func parsePage(text string) page {
	p := page{}
	for l := range strings.Lines(text) {
		if m := line.FindStringSubmatch(strings.TrimSpace(l)); m != nil {
			p[m[1]] = &row{map[string]string{home: m[2], away: m[3]}, m[4]}
		}
	}
	return p
}

func (p page) write(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, p.text(), 0o644)
}

// green is what a test may be without anybody having to look at it.
func green(state string) bool { return state == passes || state == skips }

// take notes how tests ended and returns the red ones: those that were green or have not
// been run before. What becomes red is noted only if that is accepted.
func (p page) take(run string, results map[string]result, accept bool) (red []string) {
	for _, name := range slices.Sorted(maps.Keys(results)) {
		now := results[name]
		r := p[name]
		if r == nil {
			r = &row{state: map[string]string{home: unknown, away: unknown}}
			p[name] = r
		}
		before := r.state[run]
		if !green(now.state) && (green(before) || before == unknown) || now.state == skips && before == passes {
			red = append(red, fmt.Sprintf("%s: %s: %s", run, name, now.why))
			if !accept {
				continue
			}
		}
		if (before == refused || before == pinned) && now.state == fails {
			red = append(red, fmt.Sprintf("%s: %s: has failed in another way than it does: %s", run, name, now.why))
			continue
		}
		r.state[run] = now.state
		other := r.state[map[string]string{home: away, away: home}[run]]
		switch {
		case now.state == passes && (other == passes || other == unknown):
			r.why = ""
		case now.state != passes && r.why == "":
			r.why = strings.NewReplacer("|", "\\|", "\t", " ").Replace(now.why)
		}
	}
	return red
}

func (p page) text() []byte {
	var b bytes.Buffer
	b.WriteString(head)
	groups := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(p)) {
		sig, _, _ := strings.Cut(strings.TrimPrefix(name, "["), "]")
		groups[sig] = append(groups[sig], name)
	}
	b.WriteString("| group | tests | pass at home | pass away | refused away | pinned away | fail away |\n|---|---|---|---|---|---|---|\n")
	all := slices.Collect(maps.Keys(p))
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		fmt.Fprintf(&b, "| %s | %s |\n", g, p.counts(groups[g]))
	}
	fmt.Fprintf(&b, "| all | %s |\n", p.counts(all))
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		fmt.Fprintf(&b, "\n## %s\n\n| test | home | away | why not |\n|---|---|---|---|\n", g)
		for _, name := range groups[g] {
			r := p[name]
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, r.state[home], r.state[away], r.why)
		}
	}
	return b.Bytes()
}

func (p page) counts(names []string) string {
	n := map[string]int{}
	for _, name := range names {
		for run, state := range p[name].state {
			n[run+state]++
		}
	}
	return fmt.Sprintf("%d | %d | %d | %d | %d | %d", len(names), n[home+passes], n[away+passes], n[away+refused], n[away+pinned], n[away+fails])
}
