package addons

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// Volumes of a, while b is busy with other tests.
func TestVolumes(t *testing.T) {
	suite.Bounded(t, time.Minute)
	t.Parallel()
	t.Run("refused", manyWritersAreRefused)
	t.Run("kept and removed", volumeIsKept)
	t.Run("supervisor killed", supervisorKilledWhileVolumesAreMade)
}

// What a StatefulSet writes is there for its next pod and after a power cut, and gone
// with the claim.
func volumeIsKept(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	apply(t, ctx, a, fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: db, image: %q, volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}`, mainjob.Image))
	labtest.Kubectl(t, ctx, a, "rollout", "status", "statefulset/db", "--timeout=60s")
	labtest.Kubectl(t, ctx, a, "exec", "db-0", "--", "sh", "-c", "echo one > /data/x && sync")
	folder := labtest.Kubectl(t, ctx, a, "get", "pv", "-o", "jsonpath={.items[?(@.spec.claimRef.name=='data-db-0')].spec.local.path}")
	if !strings.Contains(folder, "/storage/default_data-db-0_pvc-") || on(folder) != nil {
		t.Fatalf("the volume is at %q: %v", folder, on(folder))
	}
	reads := func(ctx context.Context) error {
		out, err := a.Kubectl(ctx, "exec", "db-0", "--", "cat", "/data/x")
		if err == nil && out != "one\n" {
			err = fmt.Errorf("it reads %q", out)
		}
		return err
	}

	labtest.Kubectl(t, ctx, a, "delete", "pod", "db-0", "--wait")
	await.NoError(t, ctx, 0, "the next pod reads it", func() error { return reads(ctx) })

	labtest.Kubectl(t, ctx, a, "patch", "pvc", "data-db-0", "-p", `{"spec":{"resources":{"requests":{"storage":"32Mi"}}}}`)
	says(t, ctx, a, "32Mi", "get", "pvc", "data-db-0", "-o", "jsonpath={.status.capacity.storage}")

	if err := a.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 0, "read after a power cut", func() error { return reads(ctx) })

	labtest.Kubectl(t, ctx, a, "delete", "statefulset", "db", "--wait")
	labtest.Kubectl(t, ctx, a, "delete", "pvc", "data-db-0", "--wait")
	await.NoError(t, ctx, 0, "the folder goes with the claim", func() error {
		if err := on(folder); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %v", folder, err)
		}
		return nil
	})
}

// on looks for a file on the disk of a.
func on(path string) error {
	_, err := os.Stat(a.Path(path))
	return err
}

// The supervisor is killed while volumes are made, and while they are removed:
// everything comes to its end, and nothing is left over.
func supervisorKilledWhileVolumesAreMade(t *testing.T) {
	ctx := suite.Bounded(t, 3*time.Minute)
	const claims = 6
	var manifest strings.Builder
	for i := range claims {
		fmt.Fprintf(&manifest, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c%[1]d, labels: {many: "yes"}, annotations: {volume.kubernetes.io/selected-node: a}}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---`, i)
	}
	restart := func() {
		if err := a.Kill(ctx, "supervisor"); err != nil {
			t.Fatal(err)
		}
		if err := a.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	apply(t, ctx, a, manifest.String())
	restart()
	says(t, ctx, a, strings.TrimSpace(strings.Repeat("Bound ", claims)), "get", "pvc", "-l", "many", "-o", "jsonpath={.items[*].status.phase}")
	if got := folders(t, "default_c"); len(got) != claims {
		t.Errorf("%d claims have %d folders: %q", claims, len(got), got)
	}
	labtest.Kubectl(t, ctx, a, "delete", "pvc", "-l", "many", "--wait=false")
	restart()
	await.NoError(t, ctx, 0, "no volume and no folder is left", func() error {
		out, err := a.Kubectl(ctx, "get", "pv", "-o", "name")
		if got := folders(t, "default_c"); err == nil && len(got) > 0 || strings.Contains(out, "/") {
			err = fmt.Errorf("folders %q, volumes %q", got, out)
		}
		return err
	})
}

func folders(t *testing.T, prefix string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(a.Path("/var/lib/rivulet/storage")))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			out = append(out, e.Name())
		}
	}
	return out
}

// A volume that several devices would write to is refused, with a cure.
func manyWritersAreRefused(t *testing.T) {
	ctx := suite.Bounded(t, time.Minute)
	apply(t, ctx, a, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared, annotations: {volume.kubernetes.io/selected-node: a}}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Mi}}}`)
	labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, a, "delete", "pvc", "shared") })
	event(t, ctx, a, "ProvisioningFailed", "use ReadWriteOnce")
}
