package lifecycle

import "testing"

func TestReadinessNamesTheFirstThingThatIsMissing(t *testing.T) {
	needed := Essential{"bundle", "engine", "node"}
	all := func(change string, state State, detail string) []Status {
		var out []Status
		for _, n := range append([]string{"api", "offload"}, needed...) {
			s := Status{Name: n, State: Ready}
			if n == change {
				s.State, s.Detail = state, detail
			}
			out = append(out, s)
		}
		return out
	}
	for _, tc := range []struct {
		name    string
		stages  []Status
		ready   bool
		waiting string
	}{
		{"all up", all("", "", ""), true, ""},
		{"engine failed", all("engine", Failed, "port 6443 is taken"), false, "engine: port 6443 is taken"},
		{"no detail", all("node", Starting, ""), false, "node: starting"},
		{"offloading does not count", all("offload", Failed, "x"), true, ""},
	} {
		if ready, waiting := needed.Ready(tc.stages); ready != tc.ready || waiting != tc.waiting {
			t.Errorf("%s: %v %q, want %v %q", tc.name, ready, waiting, tc.ready, tc.waiting)
		}
	}
}
