package conformancepage

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// What is on the page decides what is red, and a page that is written is read again as it was.
func TestPage(t *testing.T) {
	const net, host, node, gone = "[sig-network] Services [Conformance]", "[sig-node] hostNetwork [Conformance]", "[sig-node] by label", "[sig-node] other"
	p := Page{}
	take := func(run string, accept bool, results map[string]Result) []string {
		t.Helper()
		red := p.Take(run, results, accept)
		text := string(p.text())
		p = parse(text)
		if again := string(p.text()); again != text {
			t.Fatalf("the page changes when it is read:\n%s\n%s", text, again)
		}
		return red
	}
	if red := take(Home, false, map[string]Result{net: {State: Passes}, host: {State: Passes}}); len(red) > 0 {
		t.Fatalf("green tests are red: %v", red)
	}
	if red := take(Away, true, map[string]Result{net: {State: Fails, Why: "no | answer"}, host: {Refused, "hostNetwork"}, node: {State: Pinned}}); len(red) != 3 {
		t.Fatalf("red tests that are seen for the first time: %v", red)
	}
	if got := slices.Sorted(maps.Keys(p)); !slices.Equal(got, []string{net, node, host}) {
		t.Fatalf("the page has %q", got)
	}
	for _, test := range []struct {
		name string
		now  Result
		red  bool
	}{
		{net, Result{State: Fails, Why: "no answer"}, false}, // known
		{net, Result{Passes, ""}, false},
		{net, Result{State: Fails, Why: "no answer"}, true}, // it has passed
		{net, Result{State: Skips, Why: "one node"}, true},  // it has passed
		{host, Result{State: Refused, Why: "hostNetwork"}, false},
		{host, Result{State: Fails, Why: "timeout"}, true}, // not refused by name
		{node, Result{State: Pinned}, false},
		{node, Result{State: Fails, Why: "timeout"}, true}, // in another way
		{gone, Result{State: Fails, Why: "timeout"}, true}, // never run
		{gone, Result{State: Skips, Why: "one node"}, false},
	} {
		red := take(Away, false, map[string]Result{test.name: test.now})
		if test.red != (len(red) == 1) {
			t.Errorf("%s %v: red: %v", test.name, test.now, red)
		}
	}
	if p[net].state[Away] != Passes {
		t.Errorf("what is red now was written to the page: %v", p[net])
	}
	if !strings.Contains(string(p.text()), "| sig-network | 1 | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |") {
		t.Errorf("the counts are wrong:\n%s", p.text())
	}
}

// Ginkgo's report becomes a result for each test; a refusal is found in the output.
func TestResultsOf(t *testing.T) {
	const report = `[{"SpecialSuiteFailureReasons": ["Suite Timeout Elapsed"], "SpecReports": [
		{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a] x"], "LeafNodeText": "green", "State": "passed"},
		{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a] x"], "LeafNodeText": "red", "State": "failed", "Failure": {"Message": "one\ntwo"}},
		{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a] x"], "LeafNodeText": "host", "State": "failed", "Failure": {"Message": "timeout"},
		 "CapturedGinkgoWriterOutput": "x\nNov 22: event for p: {rivulet } OffloadRefused: hostNetwork: away there is none\ny"},
		{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a] x"], "LeafNodeText": "wrong", "State": "failed", "Failure": {"Message": "expected 3 endpoints, got 2"},
		 "CapturedGinkgoWriterOutput": "x\nNov 22: event for p: {rivulet } OffloadRefused: hostNetwork: away there is none\ny"},
		{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a] x"], "LeafNodeText": "by label", "State": "failed", "Failure": {"Message": "timeout"},
		 "CapturedGinkgoWriterOutput": "x\nNov 22: event for p: { } FailedScheduling: 0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. no new claims\ny"},
		{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a] x"], "LeafNodeText": "cut", "State": "timedout", "Failure": {"Message": "A suite timeout occurred"}},
		{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a] x"], "LeafNodeText": "ended", "State": "interrupted", "Failure": {"Message": "Interrupted by User"}},
		{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a] x"], "LeafNodeText": "not for us", "State": "skipped", "Failure": {"Message": "two nodes"}},
		{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a] x"], "LeafNodeText": "not asked for", "State": "skipped"}]}]`
	got, err := Results([]byte(report))
	if err == nil {
		t.Error("a run that was cut short is not an error")
	}
	want := map[string]Result{"[sig-a] x green": {State: Passes}, "[sig-a] x red": {Fails, "one"},
		"[sig-a] x wrong": {Fails, "expected 3 endpoints, got 2"},
		"[sig-a] x host":  {Refused, "hostNetwork: away there is none"}, "[sig-a] x by label": {Pinned, "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector"},
		"[sig-a] x not for us": {Skips, "two nodes"}}
	if !maps.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}
