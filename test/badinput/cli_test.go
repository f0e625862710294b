package badinput

import (
	"os/exec"
	"strings"
	"testing"
)

// Whatever is wrong on the command line: exit code 2, one line, and where to read
// on. Nothing has been touched by then.
func TestCommandLine(t *testing.T) {
	if why != "" {
		t.Skip(why)
	}
	for _, tc := range []struct{ args, want string }{
		{"--foo", "unknown flag: --foo"},
		{"foo", `no command "foo"`},
		{"statsu", "did you mean status?"},
		{"help foo", `no command "foo"`},
		{"run --foo", "unknown flag: --foo"},
		{"run x", `was given "x"`},
		{"status x", `was given "x"`},
		{"status -o yaml", "-o yaml is not known; use -o json"},
		{"peers -o yaml", "use -o json"},
		{"version -o yaml", "use -o json"},
		{"status -o", "needs an argument"},
		{"--state", "needs an argument"},
		{"run --debug=maybe", "--debug"},
		{"run --reserve-cpu foo", "write for example --reserve-cpu 500m"},
		{"run --reserve-cpu -1", "not a quantity"},
		{"run --reserve-memory much", "write for example --reserve-memory 1Gi"},
		{"run --name Bad_Name", "for example bad-name"},
		{"run --name localhost", "for example lab-1"},
		{"offload", "takes one namespace"},
		{"offload a b", "takes one namespace"},
		{"unoffload", "takes one namespace"},
		{"doctor x", `was given "x"`},
		{"doctor -o yaml", "use -o json"},
		{"doctor --only memory,nonsense", `no probe "nonsense"`},
		{"metrics x", `was given "x"`},
		{"offload --when now lab", "use burst (home first), remote (only away) or any"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			args := append([]string{"--state=" + t.TempDir(), "--runtime=" + t.TempDir()}, strings.Fields(tc.args)...)
			r := end(t, exec.CommandContext(t.Context(), binary(), args...))
			told(t, r, 2, tc.want, "see: rivulet", "--help")
			if strings.Count(r.errOut, "\n") != 1 || r.out != "" {
				t.Errorf("more than one line: %q %q", r.out, r.errOut)
			}
		})
	}
}

// Asked while nothing runs, every verb says how to start.
func TestNothingRuns(t *testing.T) {
	if why != "" {
		t.Skip(why)
	}
	for _, verb := range []string{"status", "peers", "offload lab", "metrics"} {
		args := append([]string{"--state=" + t.TempDir(), "--runtime=" + t.TempDir()}, strings.Fields(verb)...)
		told(t, end(t, exec.CommandContext(t.Context(), binary(), args...)), 1, "not running")
	}
	for _, args := range [][]string{{"--version"}, {"version"}, {"--help"}, {"help", "run"}} {
		if r := end(t, exec.CommandContext(t.Context(), binary(), args...)); r.code != 0 || r.out == "" {
			t.Errorf("%v: exit code %d, %s", args, r.code, r.errOut)
		}
	}
}
