package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/tree"
)

func load(t *testing.T) (s suites) {
	t.Helper()
	if err := read("test/suites.yaml", &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// Every package of test/ whose tests have a lab is a suite or in the group of labs, and
// every path in the file exists.
func TestSuitesFile(t *testing.T) {
	s := load(t)
	mains, err := filepath.Glob(tree.Path("test", "*", "*", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	withLab := regexp.MustCompile(`(?s)func TestMain\(.*\b(suite\.Main|suite\.Run|lab\.Up)\(`)
	found := 0
	for _, file := range mains {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		folder := filepath.Dir(file)
		name := filepath.Base(folder)
		if !withLab.Match(text) {
			continue
		}
		found++
		if p := "rivulet" + strings.TrimPrefix(folder, tree.Path()); !(s.has(name) && folder == tree.Path(suiteFolder(name))) &&
			!slices.ContainsFunc(labs, func(g group) bool { return slices.Contains(g.packages, p) }) {
			t.Errorf("%s has a lab and is no suite: add it to test/suites.yaml", folder)
		}
	}
	if found < 20 {
		t.Errorf("only %d packages with a lab", found)
	}
	paths := slices.Concat(s.Everything, s.Elsewhere)
	for _, x := range s.Suites {
		if x.Minutes <= 0 || len(x.Guards) == 0 {
			t.Errorf("%s: no minutes, or nothing that it guards", x.Name)
		}
		paths = append(append(paths, x.Guards...), suiteFolder(x.Name))
	}
	for _, p := range paths {
		if found, err := filepath.Glob(tree.Path(p)); len(found) == 0 {
			t.Errorf("test/suites.yaml: there is no %s: %v", p, err)
		}
	}
	for _, x := range s.Excused {
		folder, name, _ := strings.Cut(x.Test, " ")
		if _, err := time.Parse(time.DateOnly, x.Until); err != nil || x.Why == "" || !exists(t, "rivulet/"+folder, name) {
			t.Errorf("test/suites.yaml: excused: %+v: %v", x, err)
		}
	}
	for _, pattern := range s.Skips {
		if _, err := regexp.Compile(pattern); err != nil {
			t.Errorf("test/suites.yaml: skips: %v", err)
		}
	}
}

// Each file of the product is guarded by a suite, or by what the file names beside them.
func TestEveryFileIsGuarded(t *testing.T) {
	s := load(t)
	out, err := exec.Command("git", "-C", tree.Path(), "ls-files", "cmd", "appliance", "fabric", "offload", "image", "systemd").Output()
	if err != nil {
		t.Fatal(err)
	}
	files := strings.Fields(string(out))
	for _, file := range files {
		if strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go") && len(s.pick([]string{file})) == 0 && !listed(file, s.Elsewhere) {
			t.Errorf("no suite guards %s: test/suites.yaml", file)
		}
	}
	if len(files) < 1000 {
		t.Errorf("only %d files", len(files))
	}
}

// The budgets are of packages that exist.
func TestBudgets(t *testing.T) {
	var b budget
	if err := read("test/budget.yaml", &b); err != nil {
		t.Fatal(err)
	}
	for folder, seconds := range b.Packages {
		if tests, _ := filepath.Glob(tree.Path(folder, "*_test.go")); len(tests) == 0 || seconds <= b.Default {
			t.Errorf("test/budget.yaml: %s: %d s, and %d files of tests", folder, seconds, len(tests))
		}
	}
}

// exists reports whether a package has a test.
func exists(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(tree.Path(strings.TrimPrefix(pkg, "rivulet/"), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), "\nfunc "+name+"(")
	})
}

// Every claim of docs/design/security.md and data.md names a test, and every test that it names is there.
func TestClaimsOfSecurityAreTested(t *testing.T) {
	if n := tested(t, securityPage); n < 20 {
		t.Errorf("%s has %d claims", securityPage, n)
	}
	if tested(t, dataPage) == 0 {
		t.Errorf("%s has no claim", dataPage)
	}
}

// tested checks the tests that the tables of a page name, and returns the number of claims.
func tested(t *testing.T, page string) (claims int) {
	t.Helper()
	text, err := os.ReadFile(tree.Path(page))
	if err != nil {
		t.Fatal(err)
	}
	table := false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch last := cells[len(cells)-1]; {
		case !strings.HasPrefix(line, "|"):
			table = false
		case strings.TrimSpace(last) == "test":
			table = true
		case table && !strings.HasPrefix(line, "|---"):
			claims++
			named := namedTests(last)
			if len(named) == 0 {
				t.Errorf("no test shows: %s", line)
			}
			for p, tests := range named {
				for _, name := range tests {
					if !exists(t, p, name) {
						t.Errorf("%s has no test %s", p, name)
					}
				}
			}
		}
	}
	return claims
}

const events = `{"Action":"start","Package":"rivulet/a"}
{"Action":"run","Package":"rivulet/a","Test":"TestOne"}
{"Action":"pass","Package":"rivulet/a","Test":"TestOne/part","Elapsed":1}
{"Action":"pass","Package":"rivulet/a","Test":"TestOne","Elapsed":1}
# what the linker says
{"Action":"output","Package":"rivulet/a","Test":"TestTwo","Output":"    two.go:1: wrong\n"}
{"Action":"fail","Package":"rivulet/a","Test":"TestTwo","Elapsed":2}
{"Action":"pass","Package":"rivulet/a","Test":"TestTwo","Elapsed":2}
{"Action":"fail","Package":"rivulet/a","Elapsed":30}
{"Action":"output","Package":"rivulet/b","Test":"TestVM","Output":"    vm.go:7: needs KVM\n"}
{"Action":"output","Package":"rivulet/b","Test":"TestVM","Output":"--- SKIP: TestVM (0.00s)\n"}
{"Action":"skip","Package":"rivulet/b","Test":"TestVM","Elapsed":0}
{"Action":"pass","Package":"rivulet/b","Elapsed":0.1}
{"Action":"output","Package":"rivulet/c","Output":"panic: oh\n"}
{"Action":"fail","Package":"rivulet/c","Test":"TestC","Elapsed":3}
{"Action":"fail","Package":"rivulet/c","Elapsed":3}
{"Action":"output","Package":"rivulet/d","Test":"TestSlow","Output":"    d.go:9: NOT JUDGED: late by 0.4 s\n"}
{"Action":"start","Package":"rivulet/d"}
`

func TestResultOfEvents(t *testing.T) {
	packages, err := readEvents(strings.NewReader(events))
	if err != nil {
		t.Fatal(err)
	}
	frame := "a panic, a race, a lab that did not come up, or the frame of the tests:"
	want := []result{
		{Kind: "race", Name: "rivulet/a", State: failed, Seconds: 30, Passed: 1, Failed: 1, Note: "TestTwo", Said: []string{"two.go:1: wrong"}},
		{Kind: "race", Name: "rivulet/b", State: skipped, Seconds: 0.1, Skipped: 1, Note: "TestVM: vm.go:7: needs KVM"},
		{Kind: "race", Name: "rivulet/c", State: failed, Seconds: 3, Failed: 1, Note: frame + " panic: oh"},
		{Kind: "race", Name: "rivulet/d", State: failed, Failed: 1, Note: frame}, // it never ended
	}
	for i, p := range packages {
		got := p.result("race")
		if got.Tests = nil; got.Note != want[i].Note || got.State != want[i].State || got.Passed != want[i].Passed || got.Failed != want[i].Failed || got.Skipped != want[i].Skipped || got.Seconds != want[i].Seconds || strings.Join(got.Said, "\n") != strings.Join(want[i].Said, "\n") {
			t.Errorf("%+v\nwant %+v", got, want[i])
		}
	}
	if len(packages) != len(want) {
		t.Fatalf("%d packages", len(packages))
	}
	if packages[3].unjudged != "late by 0.4 s" || packages[0].unjudged != "" {
		t.Errorf("not judged: %q, %q", packages[3].unjudged, packages[0].unjudged)
	}
	packages[0].tests["TestA"] = "fail"
	if got := packages[0].failedTests(); strings.Join(got, " ") != "TestA TestTwo" {
		t.Errorf("what may run once more: %v", got)
	}
	delete(packages[0].tests, "TestA")
	packages[0].crash = true
	for _, p := range packages {
		if got := p.failedTests(); len(got) > 0 {
			t.Errorf("%s: %v may run once more, after a race, a panic or no end", p.name, got)
		}
	}
	packages[0].crash = false
	for until, state := range map[string]state{"2999-12-31": excused, "2026-11-01": failed} {
		c := checker{suites: suites{Excused: []excuse{{Test: "a TestTwo", Why: "known", Until: until}}}}
		if got := c.judge(packages[0], "race"); got.State != state {
			t.Errorf("excused until %s: %+v", until, got)
		}
		if got := c.judge(packages[2], "race"); got.State != failed {
			t.Errorf("a panic was excused: %+v", got)
		}
	}
	for allowed, state := range map[string]state{"needs KVM$": skipped, "needs UEFI": failed} {
		c := checker{must: true, suites: suites{Skips: []string{allowed}}}
		if got := c.judge(packages[1], "race"); got.State != state {
			t.Errorf("%s is allowed: %+v", allowed, got)
		}
	}
}

func TestVerdictOfATable(t *testing.T) {
	ok, bad, none := result{State: passed, Passed: 1}, result{Kind: "race", Name: "rivulet/x", State: failed, Failed: 1, Note: "slow", Said: []string{"x_test.go:3: late"}}, result{Kind: "suite", State: leftOut}
	busy := result{State: notJudged, Failed: 1}
	for _, c := range []struct {
		all  []result
		want error
		end  string
	}{
		{[]result{ok, ok}, nil, "2 passed, 0 failed, 0 skipped\n"},
		{[]result{ok, none}, errIncomplete, "1 passed, 0 failed, 0 skipped\n"},
		{[]result{none, bad, ok}, errRed, "1 passed, 1 failed, 0 skipped\n"},
		{[]result{busy, ok}, nil, "1 passed, 0 failed, 0 skipped\n"},
		{[]result{busy, bad}, errRed, "0 passed, 1 failed, 0 skipped\n"},
		{[]result{ok, {Kind: "suite", State: skipped, Skipped: 3}}, errIncomplete, "1 passed, 0 failed, 3 skipped\n"},
	} {
		var b strings.Builder
		if err := printTable(&b, c.all, 0); !errors.Is(err, c.want) || !strings.HasSuffix(b.String(), "\n"+c.end) {
			t.Errorf("%+v: %v\n%s", c.all, err, b.String())
		}
		if named := strings.Contains(b.String(), "FAIL race x: slow\n     x_test.go:3: late\n"); named != errors.Is(c.want, errRed) {
			t.Errorf("%+v: what failed is named in the last lines: %v\n%s", c.all, named, b.String())
		}
	}
}

func TestPaceOfARun(t *testing.T) {
	b := budget{Default: 20, Packages: map[string]int{"a": 20}}
	all := func(seconds ...float64) (out []result) {
		for _, s := range seconds {
			out = append(out, result{State: passed, Name: "rivulet/a", Seconds: s})
		}
		return out
	}
	idle, slow := all(0, 10, 19, 22, 300), all(0, 0, 0, 40, 44, 300)
	if b.pace(nil) != 1 || b.pace([]result{{State: passed, Name: "rivulet/b", Seconds: 500}, {State: failed, Name: "rivulet/a", Seconds: 500}}) != 1 || b.pace(idle) != 1 || b.pace(slow) != 2.2 {
		t.Errorf("paces %v %v %v %v", b.pace(nil), b.pace(all(1, 2, 3)), b.pace(idle), b.pace(slow))
	}
	for _, c := range []struct {
		seconds, pace float64
		state         state
		noted         bool
	}{{29, 1, passed, false}, {31, 1, passed, true}, {61, 1, failed, true}, {59, 2, passed, false}, {119, 2, passed, true}, {121, 2, failed, true}} {
		r := result{State: passed, Name: "rivulet/a", Seconds: c.seconds}
		if b.judge(&r, c.pace); r.State != c.state || (r.Note != "") != c.noted {
			t.Errorf("%+v, want %+v", r, c)
		}
	}
}

func TestPick(t *testing.T) {
	s := suites{Everything: []string{"go.mod"}, Suites: []suite{
		{Name: "first", Guards: []string{"fabric", "appliance/api"}},
		{Name: "second", Guards: []string{"fabric/tunnel"}},
		{Name: "third", Guards: []string{"README.md", "offload/*.go"}},
	}}
	for _, c := range []struct{ changed, want string }{
		{"go.mod", "first second third"},
		{"fabric/tunnel/wg.go", "first second"},
		{"fabric2/x.go", ""},
		{"test/suites/second/x_test.go", "second"},
		{"CHANGELOG.md README.md", "third"},
		{"appliance/apiserver/x.go", ""},
		{"offload/offload.go", "third"},
		{"offload/policy/policy.go", ""},
	} {
		if got := strings.Join(names(s.pick(strings.Fields(c.changed))), " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.changed, got, c.want)
		}
	}
	if got := strings.Join(names(inTurn(s.Suites, 3)), " "); got != "first third second" {
		t.Errorf("the third commit begins with %s", got)
	}
}
