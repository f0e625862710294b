package upgrade

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// The process of a PID file is ended; a file that cannot be read says nothing of whether there is one.
func TestEndProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	if err := endProcess(t.Context(), file, "sleep"); err != nil {
		t.Errorf("none was started: %v", err)
	}
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := os.WriteFile(file, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := endProcess(t.Context(), file, "another program"); err != nil {
		t.Errorf("it is another program's: %v", err)
	}
	select {
	case <-ended:
		t.Fatal("another program was ended")
	default:
	}
	if err := endProcess(t.Context(), file, "sleep"); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
	case <-time.After(endGrace):
		_ = cmd.Process.Kill()
		t.Fatal("it runs on")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := endProcess(t.Context(), file, "sleep"); err == nil {
		t.Error("nobody says that it cannot be read")
	}
}
