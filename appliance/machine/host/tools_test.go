package host

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

func TestPathIsCompleted(t *testing.T) {
	const usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for in, want := range map[string]string{
		"":                       usual,
		"/opt/x:/usr/bin":        "/opt/x:/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin",
		"bin::.:/usr/local/sbin": usual,
		usual:                    usual,
	} {
		if got := completed(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func TestMissingToolsAreThoseNotInPath(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for _, tool := range []string{"iptables", "mount"} {
		if err := os.WriteFile(filepath.Join(dir, tool), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := MissingTools(); !slices.Equal(got, []string{"umount"}) {
		t.Errorf("missing %v", got)
	}
}

func TestOpenerFindsTheOtherProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if pid, ok := Opener(path); ok {
		t.Fatalf("nobody has it open, yet %d was found", pid)
	}
	cmd := exec.Command("sh", "-c", `exec 3<"$1"; echo open; read wait`, "sh", path)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer stdin.Close()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if pid, ok := Opener(path); !ok || pid != cmd.Process.Pid {
		t.Errorf("found %d, %v; want %d", pid, ok, cmd.Process.Pid)
	}
}
