package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"rivulet/test/harness/tree"
)

func load(t *testing.T) suites {
	t.Helper()
	s, err := readSuites(tree.Path("test", "suites.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func names(list []suite) (out []string) {
	for _, x := range list {
		out = append(out, x.Name)
	}
	return out
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
		if !(s.has(name) && folder == tree.Path(suiteFolder(name))) && !slices.Contains(labs, "rivulet"+strings.TrimPrefix(folder, tree.Path())) {
			t.Errorf("%s has a lab and is no suite: add it to test/suites.yaml", folder)
		}
	}
	if found < 20 {
		t.Errorf("only %d packages with a lab", found)
	}
	paths := slices.Concat(s.Everything, s.Safety)
	for _, x := range s.Suites {
		if x.Minutes <= 0 || len(x.Guards) == 0 {
			t.Errorf("%s: no minutes, or nothing that it guards", x.Name)
		}
		paths = append(append(paths, x.Guards...), suiteFolder(x.Name))
	}
	for _, p := range paths {
		if _, err := os.Stat(tree.Path(p)); err != nil {
			t.Errorf("test/suites.yaml: %v", err)
		}
	}
}

// Every test with a second try exists, has a reason, and is of no package under safety.
func TestFlakyFile(t *testing.T) {
	s := load(t)
	text, err := os.ReadFile(tree.Path("test", "flaky.md"))
	if err != nil {
		t.Fatal(err)
	}
	flaky, err := readFlaky(tree.Path("test", "flaky.md"))
	if err != nil {
		t.Fatal(err)
	}
	if rows := strings.Count(string(text), "\n| `"); rows != len(flaky) {
		t.Errorf("%d rows, %d of them are | `package` TestName | why |", rows, len(flaky))
	}
	for key := range flaky {
		p, name, _ := strings.Cut(key, " ")
		if s.safety(p) {
			t.Errorf("%s: under safety", key)
		}
		if !exists(t, p, name) {
			t.Errorf("%s: there is no such test", key)
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

// Every claim of docs/design/security.md names a test, and every test that it names is there.
func TestClaimsOfSecurityAreTested(t *testing.T) {
	text, err := os.ReadFile(tree.Path(securityPage))
	if err != nil {
		t.Fatal(err)
	}
	claims, table := 0, false
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
	if claims < 20 {
		t.Errorf("docs/design/security.md has %d claims", claims)
	}
}

func TestPick(t *testing.T) {
	s := suites{Everything: []string{"go.mod"}, Suites: []suite{
		{Name: "first", Guards: []string{"fabric", "appliance/api"}},
		{Name: "second", Guards: []string{"fabric/tunnel"}},
		{Name: "third", Guards: []string{"README.md"}},
	}}
	for _, c := range []struct{ changed, want string }{
		{"go.mod", "first second third"},
		{"fabric/tunnel/wg.go", "first second"},
		{"fabric2/x.go", ""},
		{"test/suites/second/x_test.go", "second"},
		{"CHANGELOG.md README.md", "third"},
		{"appliance/apiserver/x.go", ""},
	} {
		if got := strings.Join(names(s.pick(strings.Fields(c.changed))), " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.changed, got, c.want)
		}
	}
}

// With nothing to compare, each commit has the same three and every suite has its turn.
func TestTurn(t *testing.T) {
	s := load(t)
	seen := map[string]bool{}
	for n := range len(s.Suites) - len(always) {
		got := names(s.turn(n))
		if len(got) != len(always)+1 || !slices.Equal(got[:len(always)], always) {
			t.Fatalf("commit %d: %v", n, got)
		}
		for _, x := range got {
			seen[x] = true
		}
	}
	if len(seen) != len(s.Suites) {
		t.Errorf("%d of %d suites have a turn", len(seen), len(s.Suites))
	}
}

const events = `{"Action":"start","Package":"rivulet/a"}
{"Action":"run","Package":"rivulet/a","Test":"TestOne"}
{"Action":"pass","Package":"rivulet/a","Test":"TestOne/part","Elapsed":1}
{"Action":"pass","Package":"rivulet/a","Test":"TestOne","Elapsed":1}
# what the linker says
{"Action":"output","Package":"rivulet/a","Test":"TestTwo","Output":"    two.go:1: wrong\n"}
{"Action":"fail","Package":"rivulet/a","Test":"TestTwo","Elapsed":2}
{"Action":"fail","Package":"rivulet/a","Elapsed":30}
{"Action":"output","Package":"rivulet/b","Test":"TestVM","Output":"    vm.go:7: needs KVM\n"}
{"Action":"output","Package":"rivulet/b","Test":"TestVM","Output":"--- SKIP: TestVM (0.00s)\n"}
{"Action":"skip","Package":"rivulet/b","Test":"TestVM","Elapsed":0}
{"Action":"pass","Package":"rivulet/b","Elapsed":0.1}
{"Action":"output","Package":"rivulet/c","Output":"panic: oh\n"}
{"Action":"fail","Package":"rivulet/c","Elapsed":3}
{"Action":"start","Package":"rivulet/d"}
`

func TestResultOfEvents(t *testing.T) {
	packages, err := readEvents(strings.NewReader(events))
	if err != nil {
		t.Fatal(err)
	}
	want := []result{
		{Kind: "race", Name: "rivulet/a", State: failed, Seconds: 30, Passed: 1, Failed: 1},
		{Kind: "race", Name: "rivulet/b", State: skipped, Seconds: 0.1, Skipped: 1, Note: "vm.go:7: needs KVM"},
		{Kind: "race", Name: "rivulet/c", State: failed, Seconds: 3, Failed: 1},
		{Kind: "race", Name: "rivulet/d", State: failed, Failed: 1}, // it never ended
	}
	for i, p := range packages {
		if got := p.result("race"); got != want[i] {
			t.Errorf("%+v\nwant %+v", got, want[i])
		}
	}
	if len(packages) != len(want) {
		t.Fatalf("%d packages", len(packages))
	}
	var table strings.Builder
	if err := printTable(&table, want, 0); !errors.Is(err, errRed) {
		t.Errorf("a table with failures: %v", err)
	}
	if text := table.String(); !strings.HasSuffix(text, "\n1 passed, 3 failed, 1 skipped\n") || strings.Count(text, "FAIL") != 3 {
		t.Error(text)
	}
	if err := printTable(&table, want[1:2], 0); err != nil {
		t.Errorf("a table with nothing but a skip: %v", err)
	}
}

// Only tests of test/flaky.md run again, all that failed of a package or none.
func TestSecondTry(t *testing.T) {
	packages, err := readEvents(strings.NewReader(events))
	if err != nil {
		t.Fatal(err)
	}
	a, panicked := packages[0], packages[2]
	tried := "second try: TestTwo"
	for _, c := range []struct {
		what  string
		flaky map[string]string
		pkg   *pkg
		note  string
	}{
		{"not listed", map[string]string{"rivulet/a TestOne": "slow"}, a, "TestTwo"},
		{"listed", map[string]string{"rivulet/a TestTwo": "slow"}, a, tried},
		{"a race", map[string]string{"rivulet/a TestTwo": "slow"}, &pkg{name: a.name, ended: "fail", tests: a.tests, race: true}, "without a failed test"},
		{"a panic", map[string]string{"rivulet/c TestTwo": "slow"}, panicked, "without a failed test"},
	} {
		r := c.pkg.result("race")
		(&checker{flaky: c.flaky}).again(group{name: "race"}, c.pkg, &r) // there is no package rivulet/a: a second try fails
		if r.State != failed || !strings.HasPrefix(r.Note, c.note) {
			t.Errorf("%s: %+v", c.what, r)
		}
	}
}

// What a suite needs and cannot be made is a failure of that suite alone.
func TestASuiteThatCannotBeMade(t *testing.T) {
	c := checker{record: filepath.Join(t.TempDir(), "record")}
	for blocks, want := range map[string]state{"": red, "0123abcd": failed} {
		r, err := c.suite(suite{Name: "none", Make: "no-such-target", Blocks: blocks})
		if err != nil || r.State != want || !strings.HasPrefix(r.Note, "make no-such-target") {
			t.Errorf("%+v, %v, want %s", r, err, want)
		}
	}
}

func TestPage(t *testing.T) {
	c := checker{suites: suites{Suites: []suite{{Name: "peers", Guards: []string{"fabric"}}, {Name: "ops", Blocks: "0123abcd", Guards: []string{"image"}}}}}
	rows := map[string]row{}
	for range 3 {
		rows["peers"] = rows["peers"].after(result{State: passed, Passed: 7, Seconds: 90}, "aaaa0000")
	}
	rows["ops"] = row{inARow: 4}.after(result{State: failed, Note: "TestStory"}, "aaaa0000")
	rows["ops"] = rows["ops"].after(result{State: skipped, Note: "needs KVM"}, "bbbb0000-dirty")
	file := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(file, []byte(c.page(rows)), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := readPage(file)
	if err != nil {
		t.Fatal(err)
	}
	if again["peers"] != (row{"1.5", "pass, 7 tests", "aaaa0000", 3}) || again["ops"] != (row{"0.0", "skipped needs KVM", "bbbb0000-dirty", 0}) {
		t.Errorf("%+v", again)
	}
}
