package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"rivulet/test/harness/tree"
)

// sleeps are the functions of tests that pause other than by test/harness/await, with the reason: the length of the pause is
// what is tested or measured, or nobody waits for it, and how often. A pause that stands for a condition is none of these.
var sleeps = map[string]struct {
	n   int
	why string
}{
	// Something in the test is slow, or works at a pace; nobody waits for it.
	"appliance/addons/ingress/server_test.go TestSilenceEnds":                         {1, "a client is slow"},
	"appliance/addons/ingress/server_test.go TestAConnectionLastsLongerThanItsBounds": {2, "a pod thinks, and a client rests"},
	"appliance/engine/kine/fresh_test.go loseFreshWatches":                            {1, "a writer's pace"},
	"appliance/engine/kine/stream_test.go TestAWatchNeverStandsStill":                 {2, "the pace of questions, and a reader that is busy"},
	"fabric/httpserver/httpserver_test.go TestProgress":                               {2, "a watch without events, and a session without a word"},
	"fabric/nft/keep_test.go TestOneThatKeepsAtIt":                                    {1, "another program writes at a pace"},
	"fabric/tunnel/deadline_test.go flood":                                            {1, "a client's pace"},
	"fabric/siege_test.go TestSiege":                                                  {1, "a view is looked at all the time"},
	"offload/cost_test.go TestWhatPodsCost":                                           {4, "looks cost, and are part of what is measured; what follows is, too"},
	"offload/gatewaypod/gatewaypod_test.go run":                                       {1, "the manager starts it again after a pause"},
	"offload/many_test.go flap":                                                       {1, "a link's ups and downs"},
	"offload/target/link_test.go TestWatchesEnd":                                      {1, "a server is slow"},
	"test/suites/hostile/provider_test.go ServeHTTP":                                  {1, "the heartbeat of a provider"},
	"test/suites/partition/withdrawn_test.go asking":                                  {1, "a client's pace"},
	"test/suites/class/lesson_test.go TestALessonBegins":                              {1, "the pace of looks at an API server"},
	// The length or the moment is what is tested or measured.
	"fabric/discovery/mdns/traffic_test.go steadyTraffic":                  {2, "packets are counted for a time"},
	"fabric/tunnel/rotate_test.go TestAnotherKeyKeepsConnections":          {1, "one end has the key later than the other"},
	"image/device/build/disk_test.go TestDiskIsReproducible":               {1, "the times of FAT have steps of 2 s"},
	"offload/give_test.go silentLink":                                      {1, "a link that flaps"},
	"offload/streams_test.go largeFile":                                    {1, "a link that stalls"},
	"offload/stall_test.go pace":                                           {1, "a slow link"},
	"offload/survival_test.go TestSurvival":                                {1, "a cut of 10 s"},
	"test/harness/lab/crash_test.go TestUpKilledAnywhere":                  {1, "the moment of the kill"},
	"test/suites/ops/matrix_test.go TestPowerCutsWhileAGoodVersionIsTried": {1, "the moment of the cut"},
	"test/suites/ops/matrix_test.go TestPowerCutsWhileABadVersionIsUndone": {1, "the moment of the cut"},
	"test/suites/partition/cut_test.go TestCuts":                           {2, "cuts of 10 s and 2 min"},
	"test/suites/partition/streams_test.go TestAFileIsCopiedThroughCuts":   {1, "a cut's length"},
	// Nothing may happen in the time, and nothing shows that it has not.
	"appliance/vcluster/manager_test.go TestSleep":                              {1, "longer than it takes to fall asleep"},
	"offload/offload_test.go TestPodsRunAway":                                   {1, "longer than a pod's grace period"},
	"offload/withdraw_test.go TestWithdrawn":                                    {1, "longer than a provider that cannot tell is waited for"},
	"offload/writes_test.go rests":                                              {1, "nothing is written for 8 s"},
	"test/suites/badinput/names_test.go TestClonedDisk":                         {1, "packets are counted for 5 s"},
	"test/suites/hostile/announce_test.go TestAnAnnouncementIsNoCallToAService": {1, "nobody calls for 10 s"},
	"test/suites/partition/withdrawn_test.go TestWithdrawn":                     {2, "kube-proxy's rules show nowhere; requests reach both for a time"},
}

// Tests wait for a condition by test/harness/await. Fake time may pass as it likes.
func TestTestsDoNotSleep(t *testing.T) {
	found := map[string]int{}
	err := filepath.WalkDir(tree.Path(), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "_build" || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		name, err := filepath.Rel(tree.Path(), path)
		if err != nil {
			return err
		}
		all, err := pauses(path, nil)
		for _, p := range all {
			where := filepath.ToSlash(name) + " " + p.in
			found[where]++
			if found[where] > sleeps[where].n {
				t.Errorf("%s:%d: %s pauses by %s; wait for the condition with test/harness/await, or use testing/synctest; "+
					"if the length of the pause is the test, name the function in test/arch/waits_test.go with the reason", name, p.line, p.in, p.by)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for where, allowed := range sleeps {
		if found[where] < allowed.n || allowed.why == "" {
			t.Errorf("%s pauses %d times, the list says %d: %q", where, found[where], allowed.n, allowed.why)
		}
	}
}

type pause struct {
	line   int
	in, by string
}

// pauses finds what a file with real time pauses by: time.Sleep, a loop that goes on when a timer has fired, and the
// polling of apimachinery.
func pauses(path string, src any) (out []pause, _ error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote("testing/synctest") }) {
		return nil, nil
	}
	for _, d := range file.Decls {
		in := "a variable"
		if f, ok := d.(*ast.FuncDecl); ok {
			in = f.Name.Name
		}
		add := func(n ast.Node, by string) {
			out = append(out, pause{fset.Position(n.Pos()).Line, in, by})
		}
		var loops []ast.Node
		var stack []ast.Node
		ast.Inspect(d, func(n ast.Node) bool {
			if n == nil {
				last := stack[len(stack)-1]
				if stack = stack[:len(stack)-1]; len(loops) > 0 && loops[len(loops)-1] == last {
					loops = loops[:len(loops)-1]
				}
				return true
			}
			stack = append(stack, n)
			switch n := n.(type) {
			case *ast.ForStmt:
				loops = append(loops, n)
			case *ast.RangeStmt:
				loops = append(loops, n)
				if s, ok := n.X.(*ast.SelectorExpr); ok && s.Sel.Name == "C" {
					add(n, "a ticker in a loop")
				}
			case *ast.SelectorExpr:
				if name := selector(n); name == "time.Sleep" || strings.HasPrefix(name, "wait.Poll") {
					add(n, name)
				}
			case *ast.CommClause: // select: case <-time.After(d), and nothing follows from it
				if len(loops) > 0 && len(n.Body) == 0 && fires(n.Comm) {
					add(n, "a timer in a loop")
				}
			case *ast.ExprStmt:
				if !within(stack, n) && fires(n) {
					add(n, "a timer")
				}
			}
			return true
		})
	}
	return out, nil
}

// within reports whether the statement is the communication of a select's case.
func within(stack []ast.Node, n ast.Stmt) bool {
	if len(stack) < 2 {
		return false
	}
	c, ok := stack[len(stack)-2].(*ast.CommClause)
	return ok && c.Comm == n
}

// fires reports whether the statement is nothing but the receipt of a timer's or ticker's value.
func fires(s ast.Stmt) bool {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	r, ok := e.X.(*ast.UnaryExpr)
	if !ok || r.Op != token.ARROW {
		return false
	}
	switch x := r.X.(type) {
	case *ast.CallExpr:
		s, ok := x.Fun.(*ast.SelectorExpr)
		return ok && (selector(s) == "time.After" || selector(s) == "time.Tick")
	case *ast.SelectorExpr:
		return x.Sel.Name == "C" // of a time.Timer or time.Ticker
	}
	return false
}

func selector(s *ast.SelectorExpr) string {
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + s.Sel.Name
}

// The rule finds what it is about, and nothing else.
func TestPausesAreFound(t *testing.T) {
	for _, c := range []struct{ code, want string }{
		{`time.Sleep(time.Second)`, "[{4 f time.Sleep}]"},
		{`defer time.Sleep(1)`, "[{4 f time.Sleep}]"},
		{`nap := time.Sleep; nap(1)`, "[{4 f time.Sleep}]"},
		{`for !ok() { time.Sleep(1) }`, "[{4 f time.Sleep}]"},
		{`for end := time.Now().Add(1); !ok(); time.Sleep(1) { _ = end }`, "[{4 f time.Sleep}]"},
		{`eventually := func() { for { select { case <-ctx.Done(): t.Fatal(); case <-time.After(1): } } }; eventually()`, "[{4 f a timer in a loop}]"},
		{`for { select { case <-done: return; case <-tick.C: } }`, "[{4 f a timer in a loop}]"},
		{`for range tick.C { if ok() { return } }`, "[{4 f a ticker in a loop}]"},
		{`for { <-time.After(1) }`, "[{4 f a timer}]"},
		{`wait.PollUntilContextTimeout(ctx, 1, 1, true, nil)`, "[{4 f wait.PollUntilContextTimeout}]"},
		{`select { case <-done: case <-time.After(time.Minute): t.Fatal("in vain") }`, "[]"},
		{`for end := time.After(1); ; { select { case <-changed: case <-end: t.Fatal() } }`, "[]"},
		{`await.True(t, time.Minute, "it", ok)`, "[]"},
	} {
		got, err := pauses("x_test.go", "package p\n\nfunc f() {\n"+c.code+"\n}\n")
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v %v, want %s", c.code, got, err, c.want)
		}
	}
	fake := bytes.NewBufferString("package p\n\nimport \"testing/synctest\"\n\nfunc f() { time.Sleep(1) }\n")
	if got, err := pauses("x_test.go", fake); err != nil || len(got) != 0 {
		t.Errorf("fake time: %v %v", got, err)
	}
}
