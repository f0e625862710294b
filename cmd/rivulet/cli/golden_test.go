package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	stdflag "flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// What each verb prints, its errors and its exit code are those of testdata/*.golden. A line
// that begins with "$ rivulet" is run; what follows up to the next is what it prints.
// To add a case, add such a line and run go test ./cmd/rivulet/cli -run TestGolden -update.
func TestGolden(t *testing.T) {
	ran := map[string]bool{}
	for _, name := range []string{"KUBECONFIG", "NOTIFY_SOCKET"} {
		t.Setenv(name, "")
	}
	local := time.Local
	time.Local = time.UTC
	t.Cleanup(func() { time.Local = local })
	t.Run("running", func(t *testing.T) {
		raw, err := os.ReadFile("testdata/answers.json")
		if err != nil {
			t.Fatal(err)
		}
		var answers map[string]json.RawMessage
		if err := json.Unmarshal(raw, &answers); err != nil {
			t.Fatal(err)
		}
		maps.Copy(ran, golden(t, "testdata/running.golden", answers))
	})
	t.Run("not running", func(t *testing.T) {
		maps.Copy(ran, golden(t, "testdata/stopped.golden", nil))
	})
	each(newRoot("engine"), func(cmd *cobra.Command) {
		switch cmd.Name() {
		case "kubectl", "ctr", "crictl", "plugin": // they become another program
			return
		case "token", "burst", "config", "image", "move", "vcluster", "course": // they print help, which TestHelp reads
			return
		}
		if cmd.Runnable() && !ran[cmd.CommandPath()] && !strings.HasPrefix(path(cmd), "completion") && path(cmd) != "help" {
			t.Errorf("no golden file runs %s", cmd.CommandPath())
		}
	})
}

// passing is what differs from one run to the next.
var passing = []struct {
	pattern *regexp.Regexp
	stead   string
}{
	{regexp.MustCompile(`up [0-9.hms]+\n`), "up 5m0s\n"},
	{regexp.MustCompile(`silent for [0-9]+d`), "silent for 9d"},
	{regexp.MustCompile(`go1\.[0-9.]+`), "go1.0"},
	{regexp.MustCompile(`(client-(key|certificate)-data): .*`), "$1: DATA"},
}

// golden runs the commands of a file beside a supervisor that gives the answers, or beside none,
// and returns which verbs these were.
func golden(t *testing.T, file string, answers map[string]json.RawMessage) map[string]bool {
	t.Helper()
	dir := t.TempDir()
	if answers != nil {
		supervise(t, filepath.Join(dir, "rivulet.sock"), answers)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var now strings.Builder
	ran := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "#") && len(ran) == 0 { // below, it is what a command prints
			now.WriteString(line)
		}
		args, ok := strings.CutPrefix(strings.TrimSpace(line), "$ rivulet")
		if !ok {
			continue
		}
		verb, out, err := execute(t, dir, strings.Fields(args))
		ran[verb] = true
		for _, p := range passing {
			out = p.pattern.ReplaceAllString(out, p.stead)
		}
		fmt.Fprintf(&now, "$ rivulet%s\n%s", args, strings.ReplaceAll(out, dir, "DIR"))
		if err != nil {
			fmt.Fprintf(&now, "%s(exit %d)\n", strings.ReplaceAll(failure(err), dir, "DIR"), exitCode(err))
		}
		now.WriteString("\n")
	}
	update := stdflag.Lookup("update").Value.String() == "true" // test/harness/docpage has it
	if update {
		if err := os.WriteFile(file, []byte(now.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, got := strings.Split(string(raw), "\n$ "), strings.Split(now.String(), "\n$ ")
	if update || string(raw) == now.String() {
		return ran
	}
	for i := range want {
		if i < len(got) && want[i] != got[i] {
			t.Errorf("%s has\n\n$ %s\nbut it prints\n\n$ %s\nif that is meant: go test ./cmd/rivulet/cli -run TestGolden -update", file, want[i], got[i])
		}
	}
	return ran
}

// execute runs one command with folders of its own, and returns its verb and what it printed.
func execute(t *testing.T, dir string, args []string) (verb, out string, err error) {
	t.Helper()
	root, printed := newRoot("engine"), &bytes.Buffer{}
	root.SetOut(printed)
	root.SetErr(printed)
	root.SetIn(strings.NewReader(""))
	if cmd, _, err := root.Find(args); err == nil {
		verb = cmd.CommandPath()
	}
	root.SetArgs(append([]string{"--state", dir, "--runtime", dir}, args...))
	err = root.ExecuteContext(t.Context())
	return verb, printed.String(), err
}

func failure(err error) string {
	if err.Error() == "" {
		return ""
	}
	return "rivulet: " + oneLine(err.Error()) + "\n"
}

// supervise answers on a socket until the test ends: answers has them by method and path;
// a text is an error of the supervisor.
func supervise(t *testing.T, socket string, answers map[string]json.RawMessage) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.Method+" "+r.URL.RequestURI()]
		var refusal string
		switch {
		case !ok:
			http.Error(w, `{"error": "testdata/answers.json has no `+r.Method+" "+r.URL.RequestURI()+`"}`, http.StatusNotFound)
		case json.Unmarshal(answer, &refusal) == nil:
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": refusal})
		default:
			_, _ = w.Write(answer)
		}
	})}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}
