package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"rivulet/test/harness/tree"
)

// The groups of packages. Those that do not link the engine run once, under the race
// detector, which would compile all of Kubernetes anew for the others. Packages wait for
// engines and timers more than they compute, so two run at a time; labs have the machine
// for themselves.
var (
	linksEngine = []string{"rivulet/appliance/engine/k3s", "rivulet/cmd/rivulet"}
	labs        = []string{"rivulet/test/suites/badinput", "rivulet/test/suites/e2e", "rivulet/test/harness/lab"}
	// first are those of minutes: begun last, they would run when nothing is left to run beside them.
	first = []string{"rivulet/offload", "rivulet/offload/provider/tenancy", "rivulet/appliance/vcluster"}
)

// group is what one run of go test takes.
type group struct {
	name     string
	packages []string
	run      string // of the tests, as -run has it
	flags    []string
}

// groups divides the packages of the tree, without the device suites, into those asked for.
func (c *checker) groups(names []string) ([]group, error) {
	list, err := exec.Command("go", "list", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	race := group{name: "race", flags: []string{"-race", "-p", "2"}}
	plain := group{name: "plain", flags: []string{"-p", "2"}}
	for _, p := range strings.Fields(string(list)) {
		switch {
		case slices.Contains(labs, p) || c.suites.has(strings.TrimPrefix(p, "rivulet/"+suiteFolder("")+"/")):
		case strings.HasPrefix(p, "rivulet/test/") || slices.Contains(linksEngine, p):
			plain.packages = append(plain.packages, p)
		default:
			race.packages = append(race.packages, p)
		}
	}
	slices.SortStableFunc(race.packages, func(a, b string) int { return rank(a) - rank(b) })
	without, err := withoutDetector()
	if err != nil {
		return nil, err
	}
	var out []group
	for _, name := range names {
		switch name {
		case "race":
			out = append(out, race)
		case "plain":
			out = append(append(out, plain), without...)
		case "labs":
			out = append(out, group{name: "labs", packages: labs, flags: []string{"-p", "1"}})
		default:
			return nil, fmt.Errorf("there is no group %q: race, plain or labs", name)
		}
	}
	return out, nil
}

// rank is the package's place in first, or after all of them.
func rank(p string) int {
	if i := slices.Index(first, p); i >= 0 {
		return i
	}
	return len(first)
}

var aTest = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// withoutDetector are the tests of the race group that check less under the detector:
// those of the files that look at race.Enabled. They run without it, too.
func withoutDetector() ([]group, error) {
	files, err := exec.Command("git", "grep", "-l", "race[.]Enabled", "--", "appliance/*_test.go", "fabric/*_test.go", "offload/*_test.go", "image/*_test.go", "systemd/*_test.go", "cmd/*_test.go").Output()
	if err != nil {
		return nil, fmt.Errorf("git grep race.Enabled: %w", err)
	}
	tests := map[string][]string{}
	for _, file := range strings.Fields(string(files)) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		p := "rivulet/" + filepath.Dir(file)
		for _, m := range aTest.FindAllStringSubmatch(string(text), -1) {
			tests[p] = append(tests[p], m[1])
		}
	}
	var out []group
	for p, names := range tests {
		out = append(out, group{name: "plain", packages: []string{p}, run: "^(" + strings.Join(names, "|") + ")$"})
	}
	slices.SortFunc(out, func(a, b group) int { return strings.Compare(a.packages[0], b.packages[0]) })
	return out, nil
}

func (c *checker) test(names []string) error {
	if len(names) == 0 {
		names = []string{"race", "plain", "labs"}
	}
	groups, err := c.groups(names)
	if err != nil {
		return err
	}
	for _, g := range groups {
		results, err := c.goTest(g)
		if err != nil {
			return err
		}
		for _, r := range results {
			if err := c.note(r); err != nil {
				return err
			}
		}
	}
	return c.done()
}

// goTest runs the packages of g and returns a result for each that has tests. Tests that
// failed run once more if test/flaky.md has them all.
func (c *checker) goTest(g group) ([]result, error) {
	packages, ended, err := c.once(g)
	if err != nil {
		return nil, err
	}
	var out []result
	bad := 0
	for _, p := range packages {
		r := p.result(g.name)
		if r.State == failed {
			c.again(g, p, &r)
		}
		if r.State == failed || strings.HasPrefix(r.Note, secondTry) {
			bad++
		}
		if r.Passed+r.Failed+r.Skipped > 0 || r.State == failed {
			out = append(out, r)
		}
	}
	if ended != nil && bad == 0 { // a package that did not build, for example
		out = append(out, result{Kind: g.name, Name: "go test", State: failed, Note: ended.Error()})
	}
	return out, nil
}

// once runs the packages of g: what each did, and how go test ended.
func (c *checker) once(g group) (packages []*pkg, ended, err error) {
	events, err := os.CreateTemp(tree.Path("_build"), "events")
	if err != nil {
		return nil, nil, err
	}
	defer os.Remove(events.Name())
	defer events.Close()
	args := []string{"--format", "standard-quiet", "--hide-summary", "skipped", "--jsonfile", events.Name(), "--"}
	cmd := exec.Command(c.gotestsum, slices.Concat(args, c.testFlags(g), g.packages)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	ended = cmd.Run()
	if exit := (*exec.ExitError)(nil); ended != nil && !errors.As(ended, &exit) {
		return nil, nil, fmt.Errorf("%s: %w; make builds it", c.gotestsum, ended)
	}
	packages, err = readEvents(events)
	return packages, ended, err
}

// byName runs these tests of a package: the last action of each, nothing for one that
// is not there.
func (c *checker) byName(p string, names []string) (map[string]string, error) {
	packages, _, err := c.once(group{packages: []string{p}, run: "^(" + strings.Join(names, "|") + ")$", flags: []string{"-count=1"}})
	if err != nil || len(packages) == 0 {
		return nil, err
	}
	if tests := packages[0].tests; packages[0].ended == "pass" {
		return tests, nil
	}
	return map[string]string{}, nil // a lab that did not come up, a panic
}

func (c *checker) testFlags(g group) []string {
	flags := append([]string{"-tags", c.tags, "-timeout", "25m"}, g.flags...)
	if g.run != "" {
		flags = append(flags, "-run", g.run)
	}
	return flags
}

const secondTry = "second try: "

// again gives the failed tests of p a second try where test/flaky.md knows every one of
// them, and turns r green if they pass it. A data race, a panic and a test of a package
// where a failure may be a breach get none.
func (c *checker) again(g group, p *pkg, r *result) {
	names := p.failedTests()
	if len(names) == 0 || p.race {
		r.Note = "without a failed test: a panic, a race, or the frame of the tests"
		if p.last != "" {
			r.Note += ": " + p.last
		}
		return
	}
	for _, name := range names {
		if c.flaky[p.name+" "+name] == "" {
			r.Note = strings.Join(names, ", ")
			return
		}
	}
	g.run = "^(" + strings.Join(names, "|") + ")$"
	fmt.Printf("\ncheck: %s: %s failed and is in test/flaky.md; a second try\n", p.name, strings.Join(names, ", "))
	cmd := exec.Command("go", slices.Concat([]string{"test", "-count=1"}, c.testFlags(g), []string{p.name})...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	began := time.Now()
	err := cmd.Run()
	r.Seconds += time.Since(began).Seconds()
	if r.Note = secondTry + strings.Join(names, ", "); err == nil {
		r.State, r.Passed, r.Failed = passed, r.Passed+r.Failed, 0
	}
}

// pkg is what the events tell of a package.
type pkg struct {
	name    string
	ended   string // the last action of the package itself: pass, fail or skip
	seconds float64
	tests   map[string]string // of each test without subtests the last action
	reason  string            // the last line of a skipped test
	last    string            // what the package printed last, outside of its tests
	race    bool
}

// event is a line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

func readEvents(from io.Reader) ([]*pkg, error) {
	byName := map[string]*pkg{}
	var out []*pkg
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return out, nil
		} else if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		var e event
		if json.Unmarshal(line, &e) != nil || e.Package == "" {
			continue // what the linker prints, for example
		}
		p := byName[e.Package]
		if p == nil {
			p = &pkg{name: e.Package, tests: map[string]string{}}
			byName[e.Package], out = p, append(out, p)
		}
		p.add(e)
	}
}

func (p *pkg) add(e event) {
	top := e.Test != "" && !strings.Contains(e.Test, "/")
	switch e.Action {
	case "output":
		p.race = p.race || strings.Contains(e.Output, "WARNING: DATA RACE")
		if text := strings.TrimSpace(e.Output); top && text != "" && !strings.HasPrefix(text, "---") && !strings.HasPrefix(text, "===") {
			p.reason = text
		} else if e.Test == "" && text != "" && !strings.HasPrefix(text, "FAIL") && !strings.HasPrefix(text, "exit status") {
			p.last = text[:min(len(text), 400)]
		}
	case "pass", "fail", "skip":
		if top {
			p.tests[e.Test] = e.Action
		} else if e.Test == "" {
			p.ended, p.seconds = e.Action, e.Elapsed
		}
	}
}

func (p *pkg) failedTests() (names []string) {
	for name, ended := range p.tests {
		if ended == "fail" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (p *pkg) result(kind string) result {
	r := result{Kind: kind, Name: p.name, State: passed, Seconds: p.seconds}
	for _, ended := range p.tests {
		switch ended {
		case "pass":
			r.Passed++
		case "fail":
			r.Failed++
		case "skip":
			r.Skipped++
		}
	}
	switch {
	case p.ended != "pass" && p.ended != "skip":
		r.State, r.Failed = failed, max(r.Failed, 1)
	case r.Passed == 0:
		r.State, r.Note = skipped, p.reason
	}
	return r
}
