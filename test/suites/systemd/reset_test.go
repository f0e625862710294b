package systemd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// On a device without systemd: install refuses and says how to go on, reset is a
// first day with the same identity, and uninstall leaves nothing.
func TestByHand(t *testing.T) {
	ctx := need(t, 8*time.Minute)
	t.Parallel()
	b := devices["b"]
	if _, err := b.Run(ctx, "rivulet", "install"); err == nil || !strings.Contains(err.Error(), "rivulet run") {
		t.Errorf("install without systemd: %v, want how to do without", err)
	}
	if err := b.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := mainjob.ImportImage(ctx, []*lab.Device{b}); err != nil {
		t.Fatal(err)
	}
	labtest.Output(t, ctx, b, "rivulet", "kubectl", "create", "deployment", "web", "--image="+mainjob.Image)
	labtest.Output(t, ctx, b, "rivulet", "kubectl", "wait", "--for=condition=Available", "deployment/web", "--timeout=90s")
	id := labtest.Output(t, ctx, b, "sh", "-c", "rivulet status -o json | grep -o '\"id\":\"[a-z0-9]*\"' | head -1")

	t.Run("reset ends everything and keeps who the device is", func(t *testing.T) {
		t.Log(labtest.Output(t, ctx, b, "rivulet", "reset", "--yes"))
		left := traces(t, ctx, b)
		for line := range left {
			for _, bad := range []string{"KUBE-", "cni0", "riv0", "netns: ", "198.19.", "cgroup: ", "process: ", "/run/k3s", "/var/lib/kubelet", "10.43.0.0"} {
				if strings.Contains(line, bad) {
					t.Errorf("left behind: %s", line)
				}
			}
		}
		if !left["file: /var/lib/rivulet/state.db"] || left["file: /var/lib/rivulet/k3s"] {
			t.Error("state.db should be kept and the cluster gone")
		}
		if err := b.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if err := b.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		if out := labtest.Output(t, ctx, b, "rivulet", "kubectl", "get", "deployments", "-A", "-o", "name"); strings.TrimSpace(out) != "" {
			t.Errorf("the cluster is not empty: %s", out)
		}
		if now := labtest.Output(t, ctx, b, "sh", "-c", "rivulet status -o json | grep -o '\"id\":\"[a-z0-9]*\"' | head -1"); now != id || !strings.Contains(id, "id") {
			t.Errorf("identity %s, was %s", now, id)
		}
	})
	t.Run("uninstall ends a supervisor that was started by hand", func(t *testing.T) {
		t.Log(labtest.Output(t, ctx, b, "rivulet", "uninstall", "--purge", "--yes"))
		await.NoError(t, ctx, 0, "nothing is left", func() error {
			for line := range traces(t, ctx, b) {
				for _, bad := range []string{"KUBE-", "FLANNEL-", "cni0", "riv0", "netns: ", "198.19.", "cgroup: ", "process: ", "/run/k3s", "/run/rivulet", "/var/lib/kubelet",
					"/var/lib/rivulet", "/etc/rancher", "/etc/rivulet", "/var/log/pods", "10.43.0.0"} {
					if strings.Contains(line, bad) {
						return fmt.Errorf("left behind: %s", line)
					}
				}
			}
			return nil
		})
	})
}
