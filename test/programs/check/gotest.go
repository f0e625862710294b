package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"rivulet/test/harness/pressure"
	"rivulet/test/harness/tree"
)

// unjudged begins a line of a test's output that says why its verdict is none: the machine was busy
// with something else. What printed it runs once more, alone.
const unjudged = "NOT JUDGED: "

// Packages that run beside each other take processors from each other. When something waited for one in more than this
// share of the time, a test that failed may have missed a limit that the product keeps.
const crowded = 0.6

// At most so many packages of a run may have failed for that: more is no accident.
const mostCrowded = 3

// goTest runs the packages of g and returns a result for each that has tests. One that failed on
// a machine under pressure is noted as not judged, and has a second result.
func (c *checker) goTest(g group) ([]result, error) {
	meter := pressure.Start()
	packages, ended, err := c.once(g)
	if err != nil {
		return nil, err
	}
	figures := meter.Stop()
	var bad []*pkg
	for _, p := range packages {
		if c.judge(p, g.name).State == failed {
			bad = append(bad, p)
		}
	}
	tests := func(*pkg) []string { return nil }
	if len(packages) > 1 && len(bad) <= mostCrowded && figures.Some["cpu"] > crowded {
		tests = (*pkg).failedTests
	}
	var out []result
	for _, p := range packages {
		r := c.judge(p, g.name)
		if r.Passed+r.Failed+r.Skipped == 0 && r.State != failed {
			continue
		}
		out = append(out, r)
		if r.State != failed {
			continue
		}
		one, note := g, ""
		switch failed := tests(p); {
		case p.unjudged != "":
			note = p.unjudged
			one.flags = append(slices.Clone(g.flags), "-count=1")
		case len(failed) > 0:
			note = strings.Join(failed, ", ") + ": " + figures.String()
			one.run, one.flags = "^("+strings.Join(failed, "|")+")$", append(slices.Clone(g.flags), "-count=3")
		default:
			continue
		}
		again, err := c.alone(one, p)
		if err != nil {
			return nil, err
		}
		out[len(out)-1].State, out[len(out)-1].Note = notJudged, note
		out = append(out, again)
	}
	if ended != nil && !slices.ContainsFunc(packages, func(p *pkg) bool { return p.ended == "fail" }) { // a package that did not build, for example
		out = append(out, result{Kind: g.name, Name: "go test", State: failed, Note: ended.Error()})
	}
	return out, nil
}

// alone runs one package of g once more, with nothing beside it. This verdict is the last; what does not run again
// keeps the verdict it has.
func (c *checker) alone(g group, p *pkg) (result, error) {
	fmt.Printf("\ncheck: %s could not be judged; once more, alone\n", p.name)
	g.packages, g.flags = []string{p.name}, append(slices.Clone(g.flags), "-p", "1")
	packages, ended, err := c.once(g)
	if err != nil {
		return result{}, err
	}
	if len(packages) != 1 {
		return result{Kind: g.name, Name: p.name, State: failed, Failed: 1, Note: fmt.Sprint("the second run: ", ended)}, nil
	}
	for name, ended := range p.tests {
		if _, ran := packages[0].tests[name]; !ran {
			packages[0].tests[name] = ended
		}
	}
	return c.judge(packages[0], g.name), nil
}

// judge is the result of a package.
func (c *checker) judge(p *pkg, kind string) result {
	r := p.result(kind)
	if why := c.suites.excuse(p, time.Now()); r.State == failed && why != "" {
		r.State, r.Note = excused, r.Note+": "+why
	}
	if r.State != passed && r.State != skipped || !c.must {
		return r
	}
	for _, s := range p.skips {
		if !c.suites.mayBeSkipped(s) {
			r.State, r.Note = failed, "skipped, for no reason that test/suites.yaml allows: "+s
		}
	}
	return r
}

// once runs the packages of g: what each did, and how go test ended.
func (c *checker) once(g group) (packages []*pkg, ended, err error) {
	events, err := os.CreateTemp(tree.Path("_build"), "events")
	if err != nil {
		return nil, nil, err
	}
	defer os.Remove(events.Name())
	defer events.Close()
	args := []string{"--format", "standard-quiet", "--hide-summary", "skipped", "--jsonfile", events.Name(), "--", "-tags", c.tags, "-vet=off"} // make lint runs vet
	if g.run != "" {
		args = append(args, "-run", g.run)
	}
	if !slices.ContainsFunc(g.flags, func(f string) bool { return strings.HasPrefix(f, "-timeout") }) {
		args = append(args, "-timeout=30m") // of a hang; budgets judge what is slow
	}
	cmd := exec.Command(c.gotestsum, slices.Concat(args, g.flags, g.packages)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	ended = cmd.Run()
	if exit := (*exec.ExitError)(nil); ended != nil && !errors.As(ended, &exit) {
		return nil, nil, fmt.Errorf("%s: %w; make builds it", c.gotestsum, ended)
	}
	packages, err = readEvents(events)
	return packages, ended, err
}

// pkg is what the events tell of a package.
type pkg struct {
	name     string
	ended    string // the last action of the package itself: pass, fail or skip
	seconds  float64
	tests    map[string]string   // of each test without subtests the last action
	skips    []string            // of each skipped test and subtest its name and reason
	said     map[string]string   // what a test that has not ended printed last
	words    map[string][]string // of each test and subtest the last messages
	failing  []string            // those of the ones that failed
	last     string              // what the package printed last, outside of its tests
	crash    bool                // a race or a panic
	unjudged string              // why the verdict is none
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
			p = &pkg{name: e.Package, tests: map[string]string{}, said: map[string]string{}, words: map[string][]string{}}
			byName[e.Package], out = p, append(out, p)
		}
		p.add(e)
	}
}

func (p *pkg) add(e event) {
	switch e.Action {
	case "output":
		p.output(e)
	case "pass", "fail", "skip":
		switch {
		case e.Test == "":
			p.ended, p.seconds = e.Action, e.Elapsed
		case e.Action == "skip":
			p.skips = append(p.skips, e.Test+": "+p.said[e.Test])
		}
		if e.Test != "" && !strings.Contains(e.Test, "/") {
			if p.tests[e.Test] != "fail" { // of several runs
				p.tests[e.Test] = e.Action
			}
		}
		if e.Action == "fail" {
			p.failing = append(p.failing, p.words[e.Test]...)
		}
		delete(p.said, e.Test)
	}
}

// message is what a test says of itself: with the place in its source.
var message = regexp.MustCompile(`^\w+\.go:\d+: `)

// mostWords are the last messages of a failed test, or subtest, that the table repeats.
const mostWords = 4

func (p *pkg) output(e event) {
	text := strings.TrimSpace(e.Output)
	if p.crash = p.crash || strings.Contains(text, "WARNING: DATA RACE") || strings.HasPrefix(text, "panic: "); text == "" {
		return
	}
	if _, why, found := strings.Cut(text, unjudged); found {
		p.unjudged = why
	}
	switch {
	case e.Test != "" && !strings.HasPrefix(text, "---") && !strings.HasPrefix(text, "==="):
		p.said[e.Test] = text
		if message.MatchString(text) {
			words := append(p.words[e.Test], text[:min(len(text), 300)])
			p.words[e.Test] = words[max(0, len(words)-mostWords):]
		}
	case e.Test == "" && !strings.HasPrefix(text, "FAIL") && !strings.HasPrefix(text, "exit status"):
		p.last = text[:min(len(text), 400)]
	}
}

// failedTests are those that failed by themselves, so that they can run once more; none where the package did not end, or
// where it raced or panicked, which no machine makes.
func (p *pkg) failedTests() (names []string) {
	if p.ended != "fail" || p.crash {
		return nil
	}
	for name, ended := range p.tests {
		if ended == "fail" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (p *pkg) result(kind string) result {
	r := result{Kind: kind, Name: p.name, State: passed, Seconds: p.seconds, Tests: p.tests}
	var bad []string
	for name, ended := range p.tests {
		switch ended {
		case "pass":
			r.Passed++
		case "fail":
			r.Failed++
			bad = append(bad, name)
		case "skip":
			r.Skipped++
		}
	}
	slices.Sort(bad)
	switch {
	case p.ended != "pass" && p.ended != "skip":
		r.State, r.Failed, r.Note = failed, max(r.Failed, 1), strings.Join(bad, ", ")
		r.Said = p.failing[:min(len(p.failing), 5*mostWords)]
		if len(bad) == 0 || p.crash {
			r.Note = strings.TrimSpace("a panic, a race, a lab that did not come up, or the frame of the tests: " + p.last)
		}
	case r.Passed == 0 && r.Skipped > 0:
		r.State, r.Note = skipped, p.skips[len(p.skips)-1]
	}
	return r
}
