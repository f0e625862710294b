package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A cgroup that cannot be removed names the processes that hold it.
func TestHeldCgroup(t *testing.T) {
	needRoot(t)
	hs, err := hostHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	id := newID()
	if err := makeCgroups(hs[:1], id, "a"); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(hs[0].Mount, cgroupName(id))
	t.Cleanup(func() {
		if err := removeCgroup(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if err := os.WriteFile(filepath.Join(dir, "a", "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err, want := removeCgroup(ctx, dir), fmt.Sprintf("%d sleep S (sleeping)", cmd.Process.Pid); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}
