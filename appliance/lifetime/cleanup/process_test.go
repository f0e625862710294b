package cleanup

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// TestMain lets the test program stand in for ours: it waits for its input to end.
func TestMain(m *testing.M) {
	testns.Enter()
	if os.Getenv("CLEANUP_STANDIN") != "" {
		io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(m.Run())
}

func standIn(t *testing.T, program, argv0 string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Args = []string{argv0}
	cmd.Env = append(env, "CLEANUP_STANDIN=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	return cmd
}

// Processes are told by what they run, never by a name alone, and the others go on.
func TestOursAreEndedAndOthersGoOn(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state") // a link to another disk
	if err := os.Symlink(t.TempDir(), state); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(state, "run")
	bin := filepath.Join(state, "bundle", "abc", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	copyTo := func(path string) string {
		raw, err := os.ReadFile(self)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, raw, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := "PATH=" + filepath.Join(run, "bin") + ":/usr/bin"
	ours := map[string]*exec.Cmd{
		"tunnel":     standIn(t, copyTo(filepath.Join(bin, "rivulet-tunnel")), "rivulet-tunnel"),
		"shim":       standIn(t, copyTo(filepath.Join(bin, "containerd-shim-runc-v2")), "/x/containerd-shim-runc-v2"),
		"engine":     standIn(t, self, "engine-under-test", path),
		"containerd": standIn(t, self, "containerd ", path),
	}
	others := map[string]*exec.Cmd{
		"a shell with our tools in its PATH":   standIn(t, self, "bash", path),
		"a containerd of the host":             standIn(t, self, "containerd", "PATH=/usr/bin"),
		"an engine of another runtime folder":  standIn(t, self, "engine-under-test", "PATH=/run/other/bin"),
		"a program with a folder of that name": standIn(t, copyTo(filepath.Join(t.TempDir(), "rivulet-tunnel")), "rivulet-tunnel"),
	}
	c := newCleaner(Config{State: state, Run: run, EngineName: "engine-under-test"})
	c.processes(t.Context())
	if len(c.Left) > 0 {
		t.Error(c.Left)
	}
	for what, cmd := range ours {
		if err := cmd.Wait(); err == nil || !strings.HasPrefix(err.Error(), "signal:") {
			t.Errorf("%s: %v, want it ended by a signal", what, err)
		}
	}
	for what, cmd := range others {
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("%s was ended: %v", what, err)
		}
	}
}

// One that does not listen is killed; one that stands still too.
func TestAStubbornProcessIsKilled(t *testing.T) {
	cmd := exec.Command("sh", "-c", `trap '' TERM; echo up; kill -STOP $$; while :; do read x; done`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := end(context.Background(), []found{{pid: cmd.Process.Pid, name: "sh"}}, 300*time.Millisecond); err != nil {
		t.Error(err)
	}
	if d := time.Since(begun); d < 200*time.Millisecond || d > 5*time.Second {
		t.Errorf("it took %s, want the time it was given", d)
	}
	cmd.Wait()
}

// A service manager that goes on starting the supervisor wins: the cleanup finds it and ends there.
func TestASupervisorThatComesBackIsFound(t *testing.T) {
	state := t.TempDir()
	if err := os.WriteFile(filepath.Join(state, "state.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	manager := exec.Command("sh", "-c", `while :; do sh -c 'exec 3<"$1"; echo up; exec tail -f /dev/null' sh "$1"; done`, "sh", filepath.Join(state, "state.db"))
	manager.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	up, err := manager.StdoutPipe()
	if err := errors.Join(err, manager.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(-manager.Process.Pid, syscall.SIGKILL); manager.Wait() })
	if _, err := up.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, up)
	c := newCleaner(Config{State: state, Run: filepath.Join(state, "run"), EngineName: "engine-under-test"})
	c.processes(t.Context())
	await.True(t, 10*time.Second, "the supervisor is found", c.startedAgain)
	if c.Running == 0 || len(c.Left) != 1 || !strings.Contains(c.Left[0], "systemctl stop rivulet") {
		t.Errorf("%+v", c.Report)
	}
}
