package addons

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// kubectl top, lists and rights, and an autoscaler that acts on them.
func TestTopAndAutoscaler(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	t.Parallel() // it waits for others most of the time, and has b to itself
	// Half of what is asked for is too much already; the limit spares this machine.
	apply(t, ctx, b, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: burn}
spec:
  selector: {matchLabels: {app: burn}}
  template:
    metadata: {labels: {app: burn}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: burn
        image: %q
        command: [sh, -c, "while :; do :; done"]
        resources: {requests: {cpu: 50m}, limits: {cpu: 50m}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: burn}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: burn}
  minReplicas: 1
  maxReplicas: 2
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]`, mainjob.Image))
	labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, b, "delete", "hpa,deployment", "burn") })

	top := func(what, want string, args ...string) {
		t.Helper()
		await.NoError(t, ctx, 0, what, func() error {
			out, err := b.Kubectl(ctx, append([]string{"top"}, args...)...)
			for line := range strings.Lines(out) {
				if f := strings.Fields(line); len(f) >= 3 && strings.HasPrefix(f[0], want) && f[1] != "0m" {
					return nil
				}
			}
			return fmt.Errorf("no %s in %q: %w", want, out, err)
		})
	}
	top("kubectl top nodes", "b", "nodes")
	top("kubectl top pods, once they are measured", "burn-", "pods", "-l", "app=burn")
	if out := labtest.Kubectl(t, ctx, b, "get", "podmetrics", "-A"); !strings.Contains(out, "WINDOW") || !strings.Contains(out, "burn-") {
		t.Errorf("kubectl get podmetrics: %q", out)
	}
	if out, err := b.Kubectl(ctx, "get", "podmetrics", "--as=nobody-in-particular"); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("a user without rights: %q %v", out, err)
	}
	labtest.Kubectl(t, ctx, b, "create", "rolebinding", "looks", "--clusterrole=view", "--user=looks")
	await.NoError(t, ctx, 0, "a user who may view", func() error {
		_, err := b.Kubectl(ctx, "top", "pods", "--as=looks")
		return err
	})
	says(t, ctx, b, "2", "get", "deployment", "burn", "-o", "jsonpath={.spec.replicas}")

	// Served again after the supervisor was killed, with another certificate.
	if err := b.Kill(ctx, "supervisor"); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	top("kubectl top nodes, the supervisor killed", "b", "nodes")
}
