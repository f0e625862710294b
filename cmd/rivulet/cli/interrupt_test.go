package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"rivulet/test/harness/await"
)

// Ctrl-C ends a question at once, and nothing is done.
func TestCtrlCEndsAQuestion(t *testing.T) {
	in, typing := io.Pipe() // nobody types
	defer typing.Close()
	ctx, interrupt := context.WithCancelCause(t.Context())
	cmd := &cobra.Command{Use: "unpeer"}
	cmd.SetContext(ctx)
	cmd.SetIn(in)
	cmd.SetErr(io.Discard)
	ended := make(chan error, 1)
	go func() { ended <- typed(cmd, "all is lost", "yes") }()
	pressed := errors.New("interrupt")
	interrupt(pressed)
	select {
	case err := <-ended:
		if !errors.Is(err, pressed) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it still asks")
	}
}

func TestYIsYes(t *testing.T) {
	for text, want := range map[string]bool{"yes\n": true, "y\n": true, "Y\n": true, "n\n": false, "\n": false, "": false} {
		cmd := &cobra.Command{Use: "unpeer"}
		cmd.SetIn(strings.NewReader(text))
		cmd.SetErr(io.Discard)
		if err := typed(cmd, "all is lost", "yes"); (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
		cmd.SetIn(strings.NewReader(text))
		if err := typed(cmd, "all is lost", "nvme0n1"); err == nil {
			t.Errorf("%q passes for the name of a disk", text)
		}
	}
}

// A shell that gets the command line of a confirmation runs the command that was typed, with --yes.
func TestTheCommandOfAConfirmation(t *testing.T) {
	for _, typed := range [][]string{
		{"peer", "b", "--provide=off", "--label", "room=B12", "--label", "floor=2"}, {"unoffload", "it's; rm -rf x"}, {"unoffload", "$(reboot)"}, {"burst", "remove", "*", "--force"}, {"unoffload", "--", "-x"}, {"burst", "add", "campus", "--label", "room=B12", "--label", "a=b c"},
	} {
		args := append([]string{"--state", "/tmp/my state"}, typed...)
		root := newRoot("engine")
		cmd, rest, err := root.Find(args)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("sh", "-c", `rivulet() { printf '%s\n' "$@"; }; sudo() { "$@"; }; `+again(cmd)).Output()
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Split(strings.TrimSpace(string(out)), "\n")
		again := newRoot("engine")
		second, rest, err := again.Find(words)
		if err != nil || second.CommandPath() != cmd.CommandPath() {
			t.Fatalf("%q: %v", words, err)
		}
		if err := second.ParseFlags(rest); err != nil {
			t.Fatalf("%q: %v", words, err)
		}
		if strings.Join(second.Flags().Args(), "|") != strings.Join(cmd.Flags().Args(), "|") {
			t.Errorf("%q has %q", typed, second.Flags().Args())
		}
		for _, name := range []string{"state", "provide", "label", "labels", "force"} {
			if f, g := cmd.Flags().Lookup(name), second.Flags().Lookup(name); f != nil && (g == nil || f.Value.String() != g.Value.String()) {
				t.Errorf("%q: --%s", words, name)
			}
		}
		if yes, err := second.Flags().GetBool("yes"); err == nil && !yes {
			t.Errorf("%q does not say yes", words)
		}
	}
}

// What is watched may restart meanwhile.
func TestWatchingGoesOnThroughARestart(t *testing.T) {
	dir := t.TempDir()
	raw, err := os.ReadFile("testdata/answers.json")
	if err != nil {
		t.Fatal(err)
	}
	var answers map[string]json.RawMessage
	if err := json.Unmarshal(raw, &answers); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := &shared{}
	root := newRoot("engine")
	root.SetOut(said)
	root.SetErr(said)
	root.SetArgs([]string{"--state", dir, "--runtime", dir, "status", "-w"})
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	await.True(t, 20*time.Second, "it says that nothing runs", func() bool { return strings.Contains(said.String(), "no answer for ") })
	supervise(t, filepath.Join(dir, "rivulet.sock"), answers)
	await.True(t, 20*time.Second, "it shows the status", func() bool { return strings.Contains(said.String(), "PODS ") })
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// shared is written by one and read by another.
type shared struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}
