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

	"rivulet/test/harness/tree"
)

// suites is test/suites.yaml.
type suites struct {
	// Everything are the paths that all suites guard.
	Everything []string `json:"everything"`
	// Skips are the reasons, as expressions, for which a test may be skipped where all have to run.
	Skips []string `json:"skips"`
	// Excused are tests that fail for a known fault, each until a day.
	Excused []excuse `json:"excused"`
	// Elsewhere are paths of the product that no suite guards, but another target of the Makefile.
	Elsewhere []string `json:"elsewhere"`
	// Suites come in the order of risk.
	Suites []suite `json:"suites"`
}

// excuse lets a test fail.
type excuse struct {
	Test  string `json:"test"` // folder, space, name
	Why   string `json:"why"`
	Until string `json:"until"` // the last day, 2026-12-31
}

// excuse returns why all failures of p are excused, and "" if one of them is not: a race, a panic, what never ended.
func (s suites) excuse(p *pkg, now time.Time) string {
	var why []string
	for name, ended := range p.tests {
		if ended != "fail" {
			continue
		}
		i := slices.IndexFunc(s.Excused, func(x excuse) bool {
			return "rivulet/"+x.Test == p.name+" "+name && now.Format(time.DateOnly) <= x.Until
		})
		if i < 0 {
			return ""
		}
		why = append(why, fmt.Sprintf("%s (until %s)", s.Excused[i].Why, s.Excused[i].Until))
	}
	if p.crash || p.ended != "fail" {
		return ""
	}
	return strings.Join(why, "; ")
}

type suite struct {
	Name    string   `json:"name"`
	Minutes float64  `json:"minutes"` // what it takes on two cores
	Guards  []string `json:"guards"`  // folders, files and patterns of the tree
	Make    string   `json:"make"`    // a target of the Makefile that it needs beside the binary
}

// read reads a file of the tree into what it is to be; a key that is unknown is an error.
func read(file string, into any) error {
	text, err := os.ReadFile(tree.Path(file))
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func (s suites) has(name string) bool {
	return slices.ContainsFunc(s.Suites, func(x suite) bool { return x.Name == name })
}

// mayBeSkipped reports whether a skip, "TestName: file.go:7: reason", is one that is allowed.
func (s suites) mayBeSkipped(skip string) bool {
	return slices.ContainsFunc(s.Skips, func(pattern string) bool { return regexp.MustCompile(pattern).MatchString(skip) })
}

// suiteFolder is where the suite of that name is, below the root of the tree.
func suiteFolder(name string) string { return path.Join("test/suites", name) }

func within(file, folder string) bool {
	return file == folder || strings.HasPrefix(file, strings.TrimSuffix(folder, "/")+"/")
}

// guards reports whether the suite guards the file.
func (s suites) guards(x suite, file string) bool {
	return listed(file, slices.Concat(s.Everything, x.Guards, []string{suiteFolder(x.Name)}))
}

// listed reports whether a file is in one of the folders, is one of the files, or matches a pattern.
func listed(file string, list []string) bool {
	return slices.ContainsFunc(list, func(g string) bool {
		match, err := path.Match(g, file)
		return within(file, g) || match && err == nil
	})
}

// pick returns the suites that guard one of the changed files, in order of risk.
func (s suites) pick(changed []string) (out []suite) {
	for _, x := range s.Suites {
		if slices.ContainsFunc(changed, func(file string) bool { return s.guards(x, file) }) {
			out = append(out, x)
		}
	}
	return out
}

// inTurn puts another suite first for each n; the first of the file, the riskiest, stays in its place.
func inTurn(list []suite, n int) []suite {
	if len(list) < 3 {
		return list
	}
	rest := list[1:]
	n %= len(rest)
	return slices.Concat(list[:1], rest[n:], rest[:n])
}

// changed runs the suites that guard what changed since base. With a limit of time it goes on with the
// others while there is time; those of the change that were not run make the check incomplete.
func (c *checker) changed(base string, until int64) error {
	files, since, err := changedSince(base)
	if err != nil {
		return err
	}
	count, err := git("rev-list", "--count", "HEAD")
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	picked := c.suites.pick(files)
	run := picked
	if until > 0 {
		isPicked := func(x suite) bool { return slices.ContainsFunc(picked, func(p suite) bool { return p.Name == x.Name }) }
		run = slices.Concat(inTurn(picked, n), slices.DeleteFunc(inTurn(c.suites.Suites, n), isPicked))
	}
	fmt.Printf("check: changed since %s: %s\n", since, strings.Join(names(picked), " "))
	for i, x := range run {
		if need := time.Duration(x.Minutes * float64(time.Minute)); until > 0 && time.Now().Add(need).After(time.Unix(until, 0)) {
			if i >= len(picked) {
				continue // it guards nothing of the change
			}
			left := max(0, time.Until(time.Unix(until, 0)).Seconds())
			r := result{Kind: "suite", Name: x.Name, State: leftOut, Note: fmt.Sprintf("takes %g min, %s were left: make test-devices SUITE=%s", x.Minutes, clock(left), x.Name)}
			if err := c.note(r); err != nil {
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

func names(list []suite) (out []string) {
	for _, x := range list {
		out = append(out, x.Name)
	}
	return out
}

// changedSince lists the files that differ from base. Without one that is the commit at which HEAD left
// origin/main; in a clone of main, the last one that is six hours older than HEAD.
func changedSince(base string) (files []string, since string, err error) {
	if base == "" {
		head, err := git("log", "-1", "--format=%H %ct")
		if err != nil {
			return nil, "", err
		}
		hash, at, _ := strings.Cut(head, " ")
		if base, _ = git("merge-base", "origin/main", "HEAD"); base == "" || base == hash {
			seconds, err := strconv.ParseInt(at, 10, 64)
			if err != nil {
				return nil, "", err
			}
			if base, err = git("rev-list", "-1", fmt.Sprintf("--before=%d", seconds-6*3600), "HEAD"); err != nil {
				return nil, "", err
			}
		}
		if base == "" { // no older commit
			if base, err = git("hash-object", "-t", "tree", "/dev/null"); err != nil {
				return nil, "", err
			}
		}
	}
	diff, err := git("diff", "--name-only", "--no-renames", base)
	if err != nil {
		return nil, "", fmt.Errorf("BASE=%s is no commit of this repository: %w", base, err)
	}
	return strings.Fields(diff), base[:min(8, len(base))], nil
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("git %s: %s", args[0], strings.TrimSpace(string(exit.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

// suite runs one suite and notes how it ended: the last of its results, of which there are two
// where the first could not be judged.
func (c *checker) suite(x suite) (result, error) {
	began := time.Now()
	results := []result{{Kind: "suite", State: failed, Failed: 1, Note: "make " + x.Make}}
	if x.Make == "" || made(x.Make) {
		timeout := time.Duration(max(x.Minutes*2.5, 10) * float64(time.Minute)).Round(time.Second)
		var err error
		results, err = c.goTest(group{name: "suite", packages: []string{"rivulet/" + suiteFolder(x.Name)}, flags: []string{"-p", "1", "-count=1", "-timeout=" + timeout.String()}})
		if err != nil {
			return result{}, err
		}
		if len(results) == 0 {
			results = []result{{Kind: "suite", State: failed, Failed: 1, Note: "no test ran"}}
		}
	}
	for i := range results {
		results[i].Name = x.Name
	}
	last := &results[len(results)-1]
	last.Seconds = time.Since(began).Seconds() // with what it needs, and its build
	for _, r := range results {
		if err := c.note(r); err != nil {
			return result{}, err
		}
	}
	return *last, nil
}

// made reports whether make has made the targets.
func made(targets string) bool {
	cmd := exec.Command("make", append([]string{"--no-print-directory"}, strings.Fields(targets)...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run() == nil
}

// page shows the last run of all suites.
const page = "docs/reference/suites.md"

// all runs the suites with these names; without names all of them, on a commit, and writes the page.
func (c *checker) all(only []string) error {
	for _, name := range only {
		if !c.suites.has(name) {
			return fmt.Errorf("there is no suite %q: %s", name, strings.Join(names(c.suites.Suites), ", "))
		}
	}
	commit, err := git("describe", "--always", "--abbrev=8", "--dirty", "--match=")
	if err != nil {
		return err
	}
	if len(only) == 0 && strings.HasSuffix(commit, "-dirty") {
		return errors.New("the page of results is of a commit: commit what you have, or name the suites: SUITE=")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# The device suites, all in one run of commit %s\n\nWritten by `make test-all`; do not edit. [check.md](../design/check.md) describes the results. Each suite blocks.\n\n| suite | minutes | result | guards |\n|---|---|---|---|\n", commit)
	for _, x := range c.suites.Suites {
		if len(only) > 0 && !slices.Contains(only, x.Name) {
			continue
		}
		r, err := c.suite(x)
		if err != nil {
			return err
		}
		shown := fmt.Sprintf("%s, %d tests", r.State, r.Passed)
		if r.Skipped > 0 {
			shown += fmt.Sprintf(", %d skipped", r.Skipped)
		}
		if r.Note != "" {
			shown += ": " + strings.ReplaceAll(r.Note, "|", "/")
		}
		fmt.Fprintf(&b, "| %s | %.1f | %s | %s |\n", x.Name, r.Seconds/60, shown, strings.Join(x.Guards, ", "))
	}
	if len(only) == 0 {
		if err := os.WriteFile(tree.Path(page), []byte(b.String()), 0o644); err != nil {
			return err
		}
	}
	return c.done()
}
