package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// Flags of rivulet before the name of a tool, or right after it, are rivulet's; the others are the tool's.
func TestFlagsBeforeATool(t *testing.T) {
	for line, want := range map[string]string{
		"kubectl get pods":                                  "get pods|/default",
		"--state /s kubectl get pods":                       "get pods|/s",
		"--state=/s --runtime /r kubectl -n x get":          "-n x get|/s",
		"kubectl --state=/s get pods --state /t":            "get pods --state /t|/s",
		"--runtime=/r ctr images ls":                        "images ls|/default",
		"--state /s crictl --runtime-endpoint unix:///x ps": "--runtime-endpoint unix:///x ps|/s",
	} {
		t.Setenv("RIVULET_STATE", "/default")
		root := newRoot("engine")
		cmd, args, err := root.Find(strings.Fields(line))
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.ParseFlags(args); err != nil { // as cobra does: it adds those that are inherited
			t.Fatal(err)
		}
		rest, err := ownFlags(cmd, args)
		state := cmd.InheritedFlags().Lookup("state").Value
		if got := strings.Join(rest, " ") + "|" + state.String(); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", line, got, err, want)
		}
	}
	_, _, err := execute(t, t.TempDir(), []string{"kubectl", "--state"})
	if exitCode(err) != exitUsage {
		t.Errorf("a flag without a folder: %v", err)
	}
}

// Where data have come to is said as one says it.
func TestMoved(t *testing.T) {
	for to, want := range map[string]string{"home": "the data of lab/data are at home\n", "b": "the data of lab/data are on b\n"} {
		var out bytes.Buffer
		line := fmt.Sprintf(`{"namespace": "lab", "claim": "data", "to": %q, "over": true}`, to)
		if err := (&common{}).showMove(&out, strings.NewReader(line)); err != nil || !strings.HasSuffix(out.String(), want) {
			t.Errorf("%s: %q, %v", to, out.String(), err)
		}
	}
}
