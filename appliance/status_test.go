package appliance

import (
	"testing"

	"rivulet/appliance/lifecycle"
)

func TestReadinessNamesTheFirstThingThatIsMissing(t *testing.T) {
	all := func(change string, state lifecycle.State, detail string) []lifecycle.Status {
		var out []lifecycle.Status
		for _, n := range append([]string{cAPI, cOffload}, needed...) {
			s := lifecycle.Status{Name: n, State: lifecycle.Ready}
			if n == change {
				s.State, s.Detail = state, detail
			}
			out = append(out, s)
		}
		return out
	}
	for _, tc := range []struct {
		name    string
		stages  []lifecycle.Status
		ready   bool
		waiting string
	}{
		{"all up", all("", "", ""), true, ""},
		{"engine failed", all(cEngine, lifecycle.Failed, "port 6443 is taken"), false, "engine: port 6443 is taken"},
		{"no detail", all(cNode, lifecycle.Starting, ""), false, "node: starting"},
		{"offloading does not count", all(cOffload, lifecycle.Failed, "x"), true, ""},
	} {
		if ready, waiting := readiness(tc.stages); ready != tc.ready || waiting != tc.waiting {
			t.Errorf("%s: %v %q, want %v %q", tc.name, ready, waiting, tc.ready, tc.waiting)
		}
	}
}
