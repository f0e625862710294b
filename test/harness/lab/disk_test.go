package lab

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// A disk of its own keeps after a power cut what was synced and only that, and can be full.
func TestDisk(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tr := newTraces(t)
	t.Setenv(strings.TrimSuffix(markEnv, "="), tr.mark)
	l, err := Up(ctx, Options{Dir: tr.dir, Binary: standInBinary(t), Devices: 1, Disk: 64 << 20, Env: map[string][]string{"": tr.env()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = Down(ctx, tr.dir) }()
	a, err := l.Device("a")
	if err != nil {
		t.Fatal(err)
	}
	sh := func(script string) string {
		t.Helper()
		out, err := a.Run(ctx, "sh", "-c", script)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	if out := sh("dd if=/dev/zero of=/root/fill bs=1M count=80 2>&1 || true"); !strings.Contains(out, "No space left") {
		t.Errorf("80 MB went onto a disk of 64 MB: %s", out)
	}
	sh("rm /root/fill; echo kept > /root/synced; echo kept > /etc/synced; sync; echo lost > /root/unsynced; echo changed > /root/synced")
	if raw, err := os.ReadFile(a.Path("/root/unsynced")); err != nil || string(raw) != "lost\n" {
		t.Errorf("seen from the host: %q %v", raw, err)
	}
	if err := a.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if out := sh("cat /root/synced /etc/synced; ls /root"); out != "kept\nkept\nsynced" {
		t.Errorf("after the power cut: %q", out)
	}
	if err := Down(ctx, tr.dir); err != nil {
		t.Fatal(err)
	}
	if left := tr.left(); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, "\n"))
	}
	if _, err := os.Stat(tr.dir); err == nil {
		t.Error("the lab's folder is still there")
	}
}
