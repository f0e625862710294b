package vcluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
)

// TestARestoredDevice: a backup of a device brings back a virtual cluster that was deleted since, with its pods, the data of its
// claim and the credentials that were given; what was made since is gone.
func TestARestoredDevice(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	a := suite.Devices["a"]
	must := func(args ...string) string { t.Helper(); return labtest.Must(t, ctx, a, args...) }
	labtest.CleanUp(t, func(ctx context.Context) { labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", "ann", "--yes") })
	ann := func(args ...string) (string, error) {
		return a.Run(ctx, append([]string{"rivulet", "kubectl", "--kubeconfig", "/tmp/ann.yaml", "-n", "lab"}, args...)...)
	}
	runs := func() {
		t.Helper()
		await.NoError(t, ctx, 2*time.Minute, "the application runs, with its data", func() error {
			out, err := ann("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.phase}")
			if err == nil && out != "Running Running" {
				err = fmt.Errorf("%q", out)
			}
			if err == nil {
				out, err = ann("exec", "deploy/web", "--", "web", "get", "http://web.lab.svc.cluster.local/")
			}
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		})
	}
	must("rivulet", "vcluster", "create", "ann")
	must("rivulet", "vcluster", "connect", "ann", "--kubeconfig", "/tmp/ann.yaml")
	must("sh", "-c", `printf %s "$1" | rivulet kubectl --kubeconfig /tmp/ann.yaml apply -f -`, "apply", app)
	runs()
	if _, err := ann("exec", "deploy/web", "--", "sh", "-c", "echo kept > /data/x"); err != nil {
		t.Fatal(err)
	}
	must("rivulet", "backup", "--volumes", "/var/lib/a.backup")
	if _, err := ann("create", "configmap", "later"); err != nil {
		t.Fatal(err)
	}
	must("rivulet", "vcluster", "delete", "ann", "--yes")
	must("rivulet", "vcluster", "create", "later")

	if err := a.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	must("rivulet", "restore", "--yes", "/var/lib/a.backup")
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	runs()
	if out, err := ann("exec", "deploy/web", "--", "cat", "/data/x"); err != nil || strings.TrimSpace(out) != "kept" {
		t.Errorf("the claim has %q: %v", out, err)
	}
	if out, err := ann("get", "configmap", "later", "--ignore-not-found", "-o", "name"); err != nil || out != "" {
		t.Errorf("what was made after the backup: %q %v", out, err)
	}
	if out := must("rivulet", "vcluster", "list"); strings.Contains(out, "later") || !strings.Contains(out, "ann") {
		t.Errorf("virtual clusters: %s", out)
	}
	await.NoError(t, ctx, time.Minute, "no process is left of what was set aside", func() error {
		if out := strings.Fields(must("sh", "-c", "pgrep -f '^rivulet-tenant' || true")); len(out) != 1 {
			return fmt.Errorf("processes %v", out)
		}
		return nil
	})
	must("rivulet", "vcluster", "delete", "ann", "--yes")
	await.NoError(t, ctx, time.Minute, "deleted, nothing is left at the host", func() error {
		if out := must("rivulet", "kubectl", "get", "namespaces", "-l", "rivulet.dev/origin", "-o", "name"); out != "" {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}
