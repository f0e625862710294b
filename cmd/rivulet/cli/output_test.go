package cli

import (
	"bytes"
	"os"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/fabric/trust"
)

// JSON and YAML of the same, and a list that has nothing in it is one all the same.
func TestPrint(t *testing.T) {
	now := time.Unix(0, 0).UTC()
	var none []trust.Invite
	for _, tt := range []struct {
		output string
		v      any
		want   string
	}{
		{"json", none, "[]\n"},
		{"yaml", none, "---\n[]\n"},
		{"json", api.Invites{Now: now}, `{"invites":[],"now":"1970-01-01T00:00:00Z"}` + "\n"},
		{"yaml", api.Invites{Now: now}, "---\ninvites: []\nnow: \"1970-01-01T00:00:00Z\"\n"},
		{"json", &api.Forgotten{Gone: []string{"b"}}, `{"gone":["b"],"stay":[]}` + "\n"},
		{"json", map[string]any{"node": "b"}, `{"node":"b"}` + "\n"},
	} {
		var out bytes.Buffer
		if err := (&common{output: tt.output}).print(&out, tt.v); err != nil || out.String() != tt.want {
			t.Errorf("%q %v, want %q", out.String(), err, tt.want)
		}
	}
}

// Only a terminal gets pictures and escape sequences.
func TestIsTerminal(t *testing.T) {
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pty.Close()
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if !isTerminal(pty) || isTerminal(file) || isTerminal(&bytes.Buffer{}) {
		t.Error("a terminal is not told from a file")
	}
}
