package badinput

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/test/harness/labtest"
)

// Whatever is wrong on the command line: exit code 2, one line, and where to read
// on. Nothing has been touched by then.
func TestCommandLine(t *testing.T) {
	suite.Need(t)
	for _, tc := range []struct{ args, want string }{
		{"--foo", "unknown flag: --foo"},
		{"foo", `no command "foo"`},
		{"statsu", "did you mean status?"},
		{"help foo", `no command "foo"`},
		{"run --foo", "unknown flag: --foo"},
		{"run x", `was given "x"`},
		{"status x", `was given "x"`},
		{"status -o xml", "-o xml is not known; use -o json"},
		{"peers -o xml", "or -o wide"},
		{"version -o xml", "use -o json"},
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
		{"config chekc", "did you mean check?"},
		{"config check a b", "takes one file"},
		{"config show --name Bad_Name", "for example bad-name"},
		{"config show -o xml", "use -o json"},
		{"doctor x", `no command "x"`},
		{"doctor memory dns", "rivulet doctor --only memory,dns"},
		{"doctor -o xml", "use -o json"},
		{"doctor --only memory,nonsense", `no probe "nonsense"`},
		{"metrics x", `no command "x"`},
		{"firstboot x", `was given "x"`},
		{"console x", `no command "x"`},
		{"console end", "takes one ID, or --all"},
		{"console --pair=perhaps", "--pair"},
		{"support x", `was given "x"`},
		{"support -o json", "-o is the name of the archive here"},
		{"peer", "takes one name or address"},
		{"approve", "takes one name"},
		{"invite x", `no command "x"`},
		{"nodes x", `no command "x"`},
		{"nodes remove", "takes the name of one node"},
		{"token create --for 10", "invalid argument"},
		{"token revoke", "takes the ID of one token"},
		{"join", "takes one token"},
		{"leave now", "takes no argument"},
		{"invite revoke", "takes the ID of one invite"},
		{"unpeer a b", "takes one name"},
		{"drain", "takes one peer"},
		{"move", "move what?"},
		{"move volme a/b home", `no command "volme"`},
		{"move volume a/b", "takes a claim and a target"},
		{"move volume data home", "no NAMESPACE/CLAIM"},
		{"move volume a/b/c home", "no NAMESPACE/CLAIM"},
		{"volumes adopt", "takes what rivulet volumes lists"},
		{"volumes delete a b", "takes what rivulet volumes lists"},
		{"move volume a/b home -o xml", "use -o json"},
		{"drain a --timeout x", "invalid duration"},
		{"vcluster sleep", "takes"},
		{"vcluster create -f x ann", "the names are in the file"},
		{"vcluster create -f x --sleep 1m", "the settings are in the file"},
		{"course status", "takes"},
		{"course report db -o xml", "use -o"},
		{"course kubeconfigs db", "need a folder"},
		{"course foo", `no command "foo"`},
		{"vcluster delete", "takes a name, or several"},
		{"services x", `was given "x"`},
		{"services -o xml", "use -o json"},
		{"offload lab --prefer best", "use cheapest, nearest, spread"},
		{"peer b --price x", "invalid argument"},
		{"peer b --label room", "write KEY=VALUE"},
		{"tenants remove", "takes one peer"},
		{"doctor peer", "takes the name of one peer"},
		{"support --encrypt nobody", "no age recipient"},
		{"burst foo", `no command "foo"`},
		{"burst add", "takes one name"},
		{"burst add campus", "--kubeconfig FILE is needed"},
		{"burst add Bad_Name --kubeconfig /none", "cannot be the name of a burst target"},
		{"burst add a --kubeconfig /none --limits cpu", "write it like cpu=8"},
		{"burst add a --kubeconfig /none --network tcp", "use one of none, auto, stream, udp"},
		{"burst check x", `was given "x"`},
		{"burst status", "takes one name"},
		{"burst remove", "takes one name"},
		{"burst remove a --purge", "--purge goes with --kubeconfig"},
		{"flash", "takes an image and a disk"},
		{"flash a.img", "takes an image and a disk"},
		{"flash a.img b c", "takes an image and a disk"},
		{"flash --list x", `was given "x"`},
		{"flash --list -o xml", "use -o json"},
		{"broker x", `was given "x"`},
		{"broker --listen", "needs an argument"},
		{"offload --when now lab", "use burst (home first), remote (only away) or any"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			args := append([]string{"--state=" + t.TempDir(), "--runtime=" + t.TempDir()}, strings.Fields(tc.args)...)
			r := end(t, exec.CommandContext(t.Context(), labtest.Binary(), args...))
			told(t, r, 2, tc.want, "see: rivulet", "--help")
			if strings.Count(r.errOut, "\n") != 1 || r.out != "" {
				t.Errorf("more than one line: %q %q", r.out, r.errOut)
			}
		})
	}
}

// Asked while nothing runs, every verb says how to start.
func TestNothingRuns(t *testing.T) {
	suite.Need(t)
	for _, verb := range []string{"status", "peers", "offload lab", "config reload", "metrics", "move volume lab/data home"} {
		args := append([]string{"--state=" + t.TempDir(), "--runtime=" + t.TempDir()}, strings.Fields(verb)...)
		told(t, end(t, exec.CommandContext(t.Context(), labtest.Binary(), args...)), 1, "not running")
	}
	for _, args := range [][]string{{"--version"}, {"version"}, {"--help"}, {"help", "run"}, {"config", "example"}, {"config", "show", "--runtime=" + t.TempDir()}} {
		if r := end(t, exec.CommandContext(t.Context(), labtest.Binary(), args...)); r.code != 0 || r.out == "" {
			t.Errorf("%v: exit code %d, %s", args, r.code, r.errOut)
		}
	}
}

// A variable that nothing reads, or with a value that cannot be, starts nothing.
func TestEnvironment(t *testing.T) {
	suite.Need(t)
	dir := t.TempDir()
	for variable, want := range map[string]string{
		"RIVULET_TRUSTMODE=ask":      "the environment has RIVULET_TRUSTMODE, which nothing reads; did you mean RIVULET_TRUST_MODE?",
		"RIVULET_TRUST_MODE=nobody":  `$RIVULET_TRUST_MODE: trust.mode: "nobody" is not known; write lan, group or ask`,
		"RIVULET_RESERVE_CPU=plenty": "RIVULET_RESERVE_CPU",
	} {
		cmd := exec.CommandContext(t.Context(), labtest.Binary(), "run", "--state="+dir, "--runtime="+dir)
		cmd.Env = environ(variable)
		told(t, end(t, cmd), 2, want)
	}
	cmd := exec.CommandContext(t.Context(), labtest.Binary(), "config", "show", "--origin", "--state="+dir, "--runtime="+dir)
	cmd.Env = environ("RIVULET_TRUST_MODE=ask")
	if r := end(t, cmd); r.code != 0 || !strings.Contains(r.out, "mode: ask") || !strings.Contains(r.out, "environment RIVULET_TRUST_MODE") {
		t.Errorf("%+v", r)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("something was begun: %v, %v", left, err)
	}
}

// A configuration file: all mistakes on standard output, a summary on standard error.
func TestConfigCheck(t *testing.T) {
	suite.Need(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	check := func(text string) result {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return end(t, exec.CommandContext(t.Context(), labtest.Binary(), "config", "check", file))
	}
	r := check("nmae: a\nshare: {cpu: 5}\n")
	told(t, r, 1, file+" has 2 mistakes")
	if want := file + ":1:1: unknown key \"nmae\"; did you mean name?\n" + file + ":2:14: share.cpu: \"5\" lacks the %; write 5%\n"; r.out != want {
		t.Errorf("%q, want %q", r.out, want)
	}
	if r := check("name: a\n"); r.code != 0 || r.out != file+" has no mistake\n" || r.errOut != "" {
		t.Errorf("%+v", r)
	}
	told(t, end(t, exec.CommandContext(t.Context(), labtest.Binary(), "config", "check", file+".none")), 1, "has a mistake")
	cmd := exec.CommandContext(t.Context(), labtest.Binary(), "config", "check", "-o", "json")
	cmd.Env = environ("RIVULET_CONFIG=" + filepath.Dir(file))
	if r := end(t, cmd); r.code != 1 || !strings.Contains(r.out, `"valid":false`) || !strings.Contains(r.out, "it is a folder") {
		t.Errorf("%+v", r)
	}
}
