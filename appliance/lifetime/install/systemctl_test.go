package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The image has the unit in /usr/lib, a package of a distribution elsewhere: only systemd's answer says whether there
// is a service to stop.
func TestSystemdIsAskedToStop(t *testing.T) {
	for answer, want := range map[string]string{
		"exit 0": "",
		"echo 'Failed to stop rivulet.service: Unit rivulet.service not loaded.' >&2; exit 5": "",
		"echo 'Failed to connect to bus' >&2; exit 1":                                         "Failed to connect to bus",
	} {
		dir := t.TempDir()
		asked := filepath.Join(dir, "asked")
		if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\necho \"$*\" >"+asked+"\n"+answer+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":/usr/bin:/bin")
		err := Stop(t.Context())
		if raw, _ := os.ReadFile(asked); string(raw) != "stop rivulet.service\n" {
			t.Errorf("%s: systemctl %q", answer, raw)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", answer, err, want)
		}
	}
}

func TestShuttingDown(t *testing.T) {
	for answer, want := range map[string]bool{"echo stopping; exit 1": true, "echo running": false, "echo degraded; exit 1": false, "exit 1": false} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\n[ \"$1\" = is-system-running ] || exit 9\n"+answer+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":/usr/bin:/bin")
		if got := ShuttingDown(t.Context()); got != want {
			t.Errorf("%s: %v", answer, got)
		}
	}
}

// A cluster manager that restarts a machine by its watchdog keeps it.
func TestOthersKeepTheWatchdog(t *testing.T) {
	proc := t.TempDir()
	open := func(pid, comm, file string) {
		dir := filepath.Join(proc, pid)
		if err := os.MkdirAll(filepath.Join(dir, "fd"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "comm"), []byte(comm+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(file, filepath.Join(dir, "fd", "3")); err != nil {
			t.Fatal(err)
		}
	}
	open("1", "systemd", "/dev/watchdog0")
	open("20", "sh", "/dev/null")
	if got := watchdogUser(proc); got != "" {
		t.Errorf("%s has it, want nobody but systemd", got)
	}
	open("300", "watchdog-mux", "/dev/watchdog0")
	if got := watchdogUser(proc); got != "watchdog-mux (pid 300)" {
		t.Errorf("%q", got)
	}
}
