package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// suites is test/suites.yaml.
type suites struct {
	// Everything are the paths that all suites guard.
	Everything []string `json:"everything"`
	// Safety are the packages whose tests have no second try.
	Safety []string `json:"safety"`
	// Suites come in the order of risk.
	Suites []suite `json:"suites"`
}

type suite struct {
	Name    string   `json:"name"`
	Minutes float64  `json:"minutes"` // what it takes on two cores
	Guards  []string `json:"guards"`  // folders and files of the tree
	Make    string   `json:"make"`    // a target of the Makefile that it needs beside the binary
	// Blocks is the commit since which a failure is one of the check: the suite had
	// passed five times in a row on two cores. Until then it only reports.
	Blocks string `json:"blocks"`
}

func readSuites(file string) (s suites, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return s, err
	}
	if err := yaml.UnmarshalStrict(text, &s); err != nil {
		return s, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

func (s suites) has(name string) bool {
	return slices.ContainsFunc(s.Suites, func(x suite) bool { return x.Name == name })
}

// safety reports whether the tests of a package get no second try: a breach that shows now and then is a breach.
func (s suites) safety(pkg string) bool {
	return slices.ContainsFunc(s.Safety, func(p string) bool { return within(strings.TrimPrefix(pkg, "rivulet/"), p) })
}

// suiteFolder is where the suite of that name is, below the root of the tree.
func suiteFolder(name string) string { return path.Join("test/suites", name) }

func within(file, folder string) bool {
	return file == folder || strings.HasPrefix(file, strings.TrimSuffix(folder, "/")+"/")
}

// pick returns the suites that guard one of the changed files, in order of risk.
func (s suites) pick(changed []string) (out []suite) {
	for _, x := range s.Suites {
		guards := slices.Concat(s.Everything, x.Guards, []string{suiteFolder(x.Name)})
		if slices.ContainsFunc(changed, func(file string) bool {
			return slices.ContainsFunc(guards, func(g string) bool { return within(file, g) })
		}) {
			out = append(out, x)
		}
	}
	return out
}

// always are the suites that run where there is nothing to compare with.
var always = []string{"hostile", "guide", "mishaps", "peers"}

// turn is always, and one of the others in turn, so that n commits run them all.
func (s suites) turn(n int) (out []suite) {
	var others []suite
	for _, x := range s.Suites {
		if slices.Contains(always, x.Name) {
			out = append(out, x)
		} else {
			others = append(others, x)
		}
	}
	return append(out, others[n%len(others)])
}

// changed runs the suites that guard what changed since base, until there is no time.
func (c *checker) changed(base string, until time.Time) error {
	picked, why, err := c.picked(base)
	if err != nil {
		return err
	}
	var names []string
	for _, x := range picked {
		names = append(names, x.Name)
	}
	fmt.Printf("check: %s: %s\n", why, strings.Join(names, " "))
	limited := until.Unix() > 0
	for _, x := range picked {
		if need := time.Duration(x.Minutes * float64(time.Minute)); limited && time.Now().Add(need).After(until) {
			err := c.note(result{Kind: "suite", Name: x.Name, State: leftOut, Note: fmt.Sprintf("takes %g min, %s were left: make test-devices SUITE=%s", x.Minutes, clock(max(0, time.Until(until).Seconds())), x.Name)})
			if err != nil {
				return err
			}
			continue
		}
		if _, err := c.suite(x); err != nil {
			return err
		}
	}
	return c.done()
}

func (c *checker) picked(base string) ([]suite, string, error) {
	if base == "" {
		base, _ = git("merge-base", "origin/main", "HEAD") // none: nothing to compare with
	}
	commit := ""
	if base != "" {
		var err error
		if commit, err = git("rev-parse", "--verify", base+"^{commit}"); err != nil {
			return nil, "", fmt.Errorf("BASE=%s is no commit of this repository: %w", base, err)
		}
		diff, err := git("diff", "--name-only", "--no-renames", commit)
		if err != nil {
			return nil, "", err
		}
		if diff != "" {
			return c.suites.pick(strings.Split(diff, "\n")), "changed since " + commit[:8], nil
		}
	}
	count, err := git("rev-list", "--count", "HEAD")
	if err != nil {
		return nil, "", err
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return nil, "", err
	}
	return c.suites.turn(n), "nothing to compare with", nil
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("git %s: %s", args[0], strings.TrimSpace(string(exit.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

// suite runs one suite once and notes how it ended.
func (c *checker) suite(x suite) (result, error) {
	began := time.Now()
	r := result{Kind: "suite", State: failed, Failed: 1, Note: "make " + x.Make}
	if x.Make == "" || made(x.Make) {
		results, err := c.goTest(group{name: "suite", packages: []string{"rivulet/" + suiteFolder(x.Name)}, flags: []string{"-p", "1", "-count=1"}})
		if err != nil {
			return result{}, err
		}
		if len(results) != 1 {
			return result{}, fmt.Errorf("suite %s: %d results", x.Name, len(results))
		}
		r = results[0]
	}
	r.Name, r.Seconds = x.Name, time.Since(began).Seconds() // with what it needs, and its build
	if r.State == failed && x.Blocks == "" {
		r.State, r.Note = red, r.Note+" (does not block yet: test/suites.yaml)"
	}
	return r, c.note(r)
}

// made reports whether make has made the targets.
func made(targets string) bool {
	cmd := exec.Command("make", append([]string{"--no-print-directory"}, strings.Fields(targets)...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run() == nil
}

var flakyRow = regexp.MustCompile("^\\| `([a-z0-9/]+)` (Test\\w+) \\| (.+) \\|$")

// readFlaky reads the tests that get a second try, each with its reason.
func readFlaky(file string) (map[string]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if m := flakyRow.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			out["rivulet/"+m[1]+" "+m[2]] = m[3]
		}
	}
	return out, nil
}
