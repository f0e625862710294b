package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"rivulet/test/harness/tree"
)

// The groups of packages. Those with goroutines of their own run under the race detector, but
// for what links the engine, for which it would compile all of Kubernetes anew. Packages wait
// for engines and timers more than they compute, so four run at a time; labs have the machine
// for themselves.
var (
	linksEngine = []string{"rivulet/appliance/engine/k3s", "rivulet/cmd/rivulet"}
	// mainJob are the tests of suite e2e that make test runs.
	mainJob = "^(TestMainJob|TestTenantsAreApart|TestNeverSeenACable)$"
	labs    = []group{
		{name: "labs", packages: []string{"rivulet/test/suites/e2e"}, run: mainJob, flags: []string{"-p", "1"}},
		{name: "labs", packages: []string{"rivulet/test/harness/lab", "rivulet/test/harness/labtest"}, flags: []string{"-p", "1"}},
	}
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
	race := group{name: "race", flags: []string{"-race", "-p", "4"}}
	plain := group{name: "plain", flags: []string{"-p", "4"}}
	again := group{name: "plain", flags: []string{"-p", "4"}} // tests of the race group that run without the detector only
	var tests []string
	for _, p := range strings.Fields(string(list)) {
		folder := strings.TrimPrefix(p, "rivulet/")
		if within(folder, suiteFolder("")) || slices.ContainsFunc(labs, func(g group) bool { return slices.Contains(g.packages, p) }) {
			continue // each has a lab, or emulators, and a target of its own
		}
		racy, err := concurrent(folder)
		if err != nil {
			return nil, err
		}
		if !racy || strings.HasPrefix(p, "rivulet/test/") || slices.Contains(linksEngine, p) {
			plain.packages = append(plain.packages, p)
			continue
		}
		race.packages = append(race.packages, p)
		without, err := withoutDetector(folder)
		if err != nil {
			return nil, err
		}
		if len(without) > 0 {
			again.packages, tests = append(again.packages, p), append(tests, without...)
		}
	}
	again.run = "^(" + strings.Join(tests, "|") + ")$"
	for _, g := range []group{race, plain} {
		slices.SortStableFunc(g.packages, func(a, b string) int { return c.budget.rank(b) - c.budget.rank(a) })
	}
	var out []group
	for _, name := range names {
		switch name {
		case "race":
			out = append(out, race)
		case "plain":
			out = append(out, plain, again)
		case "labs":
			out = append(out, labs...)
		default:
			return nil, fmt.Errorf("there is no group %q: race, plain or labs", name)
		}
	}
	return out, nil
}

// concurrent reports whether the product code of a folder has goroutines, channels or locks.
func concurrent(folder string) (bool, error) {
	files, err := filepath.Glob(tree.Path(folder, "*.go"))
	if err != nil {
		return false, err
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return false, err
		}
		found := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
			return i.Path.Value == `"sync"` || i.Path.Value == `"sync/atomic"`
		})
		ast.Inspect(file, func(n ast.Node) bool {
			switch n.(type) {
			case *ast.GoStmt, *ast.ChanType:
				found = true
			}
			return !found
		})
		if found {
			return true, nil
		}
	}
	return false, nil
}

var aTest = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// withoutDetector lists the tests of a folder's files that the race detector's build leaves out.
func withoutDetector(folder string) (tests []string, _ error) {
	files, err := filepath.Glob(tree.Path(folder, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if !bytes.HasPrefix(text, []byte("//go:build !race\n")) {
			continue
		}
		for _, m := range aTest.FindAllSubmatch(text, -1) {
			tests = append(tests, string(m[1]))
		}
	}
	return tests, nil
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
		if len(g.packages) == 0 {
			continue
		}
		if err := c.compile(g); err != nil {
			return err
		}
		results, err := c.goTest(g)
		if err != nil {
			return err
		}
		pace := c.budget.pace(results)
		for _, r := range results {
			c.budget.judge(&r, pace)
			if err := c.note(r); err != nil {
				return err
			}
		}
	}
	return c.done()
}

// compile builds what the tests of g consist of, and links nothing: their budgets are of tests, and a compiler beside them
// would count. What does not build is the tests' result.
func (c *checker) compile(g group) error {
	begun := time.Now()
	args := []string{"list", "-e", "-export", "-test", "-tags", c.tags}
	if slices.Contains(g.flags, "-race") {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, g.packages...)...)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go list -export: %w", err)
	}
	return c.note(result{Kind: g.name, Name: "compiled before the tests", State: passed, Seconds: time.Since(begun).Seconds()})
}

// budget is test/budget.yaml: the seconds that the tests of a package may take in make test.
type budget struct {
	// Default is the budget of a package that is not listed.
	Default  int            `json:"default"`
	Packages map[string]int `json:"packages"`
}

func (b budget) of(pkg string) int {
	if s, listed := b.Packages[strings.TrimPrefix(pkg, "rivulet/")]; listed {
		return s
	}
	return b.Default
}

// rank orders packages. Begun last, the longest would run when nothing is left to run beside them; all that take
// minutes at the same time would wait for each other.
func (b budget) rank(pkg string) int {
	if s := b.of(pkg); s >= 300 {
		return s
	}
	return 0
}

// pace is how many times its budget the median of the listed packages took: more than 1 on a slower or a busy machine,
// never less. Results out of Go's cache took no time, and do not count.
func (b budget) pace(all []result) float64 {
	times := []float64{1}
	for _, r := range all {
		if s, listed := b.Packages[strings.TrimPrefix(r.Name, "rivulet/")]; listed && r.State == passed && r.Seconds >= 1 {
			times = append(times, r.Seconds/float64(s))
		}
	}
	slices.Sort(times)
	return max(1, times[len(times)/2])
}

// judge notes a package that took half as long again as it may at this pace, and fails one that took three times as
// long: on one machine and commit packages differ by two thirds.
func (b budget) judge(r *result, pace float64) {
	may := float64(b.of(r.Name)) * pace
	if r.State != passed || r.Seconds <= 1.5*may {
		return
	}
	r.Note = fmt.Sprintf("took %.0f s of %.0f s: test/budget.yaml, times %.1f as all packages of this run", r.Seconds, may, pace)
	if r.Seconds > 3*may {
		r.State = failed
	}
}
