package addons

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// What runs away is seen, measured and scaled as at home, and is taken back: a
// Deployment of a that runs on b.
func TestWhatIsAwayIsSeenAndTakenBack(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	t.Parallel()
	await.NoError(t, ctx, 0, "b is a virtual node of a", func() error {
		out, err := a.Kubectl(ctx, "get", "node", "b", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}")
		if err == nil && out != "True" {
			err = fmt.Errorf("ready: %q", out)
		}
		return err
	})
	if _, err := a.Run(ctx, "rivulet", "offload", "away", "--create", "--when", "remote"); err != nil {
		t.Fatal(err)
	}
	labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, a, "delete", "namespace", "away") })
	await.NoError(t, ctx, 0, "pods of the namespace may go away", func() error { // policies take a moment
		out, err := a.Kubectl(ctx, "-n", "away", "run", "probe", "--image=none", "--dry-run=server", "-o", "jsonpath={.spec.tolerations[*].key}")
		if err == nil && !strings.Contains(out, "rivulet.dev/virtual") {
			err = fmt.Errorf("tolerations %q", out)
		}
		return err
	})
	apply(t, ctx, a, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: burn, namespace: away}
spec:
  selector: {matchLabels: {app: burn}}
  template:
    metadata: {labels: {app: burn}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: burn
        image: %q
        command: [sh, -c, "busybox ln -s /bin/busybox /tmp/tar; echo begun; while :; do :; done"]
        env: [{name: PATH, value: "/bin:/tmp"}] # kubectl cp wants a tar
        volumeMounts: [{name: tmp, mountPath: /tmp}]
        resources: {requests: {cpu: 50m}, limits: {cpu: 50m}}
      volumes: [{name: tmp, emptyDir: {}}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: burn, namespace: away}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: burn}
  minReplicas: 1
  maxReplicas: 2
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]`, mainjob.Image))
	says(t, ctx, a, "1", "-n", "away", "get", "deployment", "burn", "-o", "jsonpath={.status.availableReplicas}")
	pod := labtest.Kubectl(t, ctx, a, "-n", "away", "get", "pods", "-l", "app=burn", "-o", "jsonpath={.items[0].metadata.name}")

	// The other test on b may restart its supervisor at any time: once more, then.
	says(t, ctx, a, "begun", "-n", "away", "logs", pod)
	await.NoError(t, ctx, 0, "a file goes there and comes back", func() error {
		_, err := a.Run(ctx, "sh", "-ec", `cd /tmp; head -c 300000 /dev/urandom > out; rivulet kubectl -n away cp out "$1":/tmp/file; rivulet kubectl -n away cp "$1":/tmp/file back; cmp out back`, "cp", pod)
		return err
	})
	row := func(what, prefix string, args ...string) {
		t.Helper()
		await.NoError(t, ctx, 0, what, func() error {
			out, err := a.Kubectl(ctx, append([]string{"top"}, args...)...)
			for line := range strings.Lines(out) {
				if f := strings.Fields(line); len(f) >= 3 && strings.HasPrefix(f[0], prefix) && f[1] != "0m" && !strings.Contains(line, "unknown") {
					return nil
				}
			}
			return fmt.Errorf("no %s in %q: %w", prefix, out, err)
		})
	}
	row("kubectl top of an away pod", pod, "pods", "-n", "away", "--containers=false")
	row("kubectl top of the virtual node", "b", "nodes")
	says(t, ctx, a, "2", "-n", "away", "get", "deployment", "burn", "-o", "jsonpath={.spec.replicas}")
	await.NoError(t, ctx, 0, "b lists its tenant", func() error {
		out, err := b.Run(ctx, "rivulet", "tenants")
		if err == nil && !strings.Contains(out, "away-a") {
			err = errors.New(out)
		}
		return err
	})

	// A budget that allows nothing: the drain says so, and ends with its time.
	labtest.Kubectl(t, ctx, a, "-n", "away", "create", "poddisruptionbudget", "burn", "--selector=app=burn", "--min-available=100%")
	says(t, ctx, a, "2 of 2", "-n", "away", "get", "pdb", "burn", "-o", "jsonpath={.status.currentHealthy} of {.status.expectedPods}")
	out, err := a.Run(ctx, "rivulet", "drain", "b", "--yes", "-o", "json", "--timeout", "3s")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(out, `"event":"blocked"`) || strings.Contains(out, `"event":"evicted"`) {
		t.Errorf("a drain against a budget: %v\n%s", err, out)
	}
	labtest.Kubectl(t, ctx, a, "-n", "away", "delete", "pdb,hpa", "burn")
	out, err = a.Run(ctx, "rivulet", "drain", "b", "--yes", "--timeout", "2m")
	if err != nil || !strings.Contains(out, "no pod of ours runs there any more") {
		t.Fatalf("%v\n%s", err, out)
	}
	if out := labtest.Kubectl(t, ctx, b, "get", "pods", "-n", labtest.Twin(t, ctx, b, "away"), "-o", "name"); out != "" {
		t.Errorf("drained, yet on b there are %s", out)
	}
	if _, err := a.Run(ctx, "rivulet", "uncordon", "b"); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 0, "uncordoned, a pod runs there again", func() error {
		out, err := a.Kubectl(ctx, "-n", "away", "get", "deployment", "burn", "-o", "jsonpath={.status.availableReplicas}")
		if err == nil && (out == "" || out == "0") {
			err = errors.New("none is available")
		}
		return err
	})
}
