package vcluster

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

const controlled = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: "` + mainjob.Image + `", resources: {requests: {cpu: 10m}}}]
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: "` + mainjob.Image + `", resources: {requests: {cpu: 100m}}}]
`

const urgent = `
apiVersion: v1
kind: Pod
metadata: {name: urgent}
spec:
  priorityClassName: urgent
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: "` + mainjob.Image + `", resources: {requests: {cpu: 100m}}}]
`

// TestDaemonSetsAndPriorities: a DaemonSet has a pod on each node that a virtual cluster shows; a pod of a higher priority has
// one of its own cluster leave, which waits then.
func TestDaemonSetsAndPriorities(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	a := suite.Devices["a"]
	labtest.CleanUp(t, func(ctx context.Context) { labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", "ann", "--yes") })
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "create", "ann", "--quota", "cpu=250m")
	apply := func(text string) {
		t.Helper()
		labtest.Must(t, ctx, a, "sh", "-c", `printf %s "$1" > /tmp/controlled.yaml && rivulet vcluster connect ann -- kubectl apply -f /tmp/controlled.yaml`, "sh", text)
	}
	is := func(what, want string, args ...string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, what, func() error {
			out, err := a.Run(ctx, append([]string{"rivulet", "vcluster", "connect", "ann", "--", "kubectl", "get"}, args...)...)
			if err == nil && strings.TrimSpace(out) != want {
				err = fmt.Errorf("%q", out)
			}
			return err
		})
	}
	apply(controlled)
	is("the DaemonSet is complete", "1 of 1", "daemonset", "agent", "-o", "jsonpath={.status.numberReady} of {.status.desiredNumberScheduled}")
	is("two pods run", "2", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}")
	apply(urgent)
	is("the urgent pod runs", "Running", "pod", "urgent", "-o", "jsonpath={.status.phase}")
	is("one of the others runs", "1", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}")
	is("the one that left has an event", "preempted by pod default/urgent, whose priority is higher", "events", "--field-selector", "reason=Preempted", "-o", "jsonpath={.items[*].message}")
	is("the DaemonSet is complete still", "1", "daemonset", "agent", "-o", "jsonpath={.status.numberReady}")
}

const scaled = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: busy}
spec:
  selector: {matchLabels: {app: busy}}
  template:
    metadata: {labels: {app: busy}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: busy, image: "` + mainjob.Image + `", command: [/bin/busybox, sh, -c, "while :; do :; done"], resources: {requests: {cpu: 20m}, limits: {cpu: 100m}}}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: busy}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: busy}
  minReplicas: 1
  maxReplicas: 3
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
`

// TestMetrics: kubectl top shows what pods and the node of a virtual cluster use, to its users too, and autoscalers go by it.
func TestMetrics(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a := suite.Devices["a"]
	labtest.CleanUp(t, func(ctx context.Context) { labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", "ann", "--yes") })
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "create", "ann")
	labtest.Must(t, ctx, a, "sh", "-c", `printf %s "$1" > /tmp/scaled.yaml && rivulet vcluster connect ann -- kubectl apply -f /tmp/scaled.yaml`, "sh", scaled)
	kubectl := func(args ...string) (string, error) {
		return a.Run(ctx, append([]string{"rivulet", "vcluster", "connect", "ann", "--", "kubectl"}, args...)...)
	}
	for _, kind := range [][]string{{"pods", "-l", "app=busy"}, {"nodes"}} {
		took := await.NoError(t, ctx, 2*time.Minute, "kubectl top "+kind[0], func() error {
			out, err := kubectl(append(append([]string{"top"}, kind...), "--no-headers")...)
			if f := strings.Fields(out); err == nil && (len(f) < 3 || f[1] == "0m") {
				err = fmt.Errorf("%q", out)
			}
			return err
		})
		t.Logf("top %s after %s", kind[0], took.Round(time.Second))
	}
	if out, err := kubectl("api-resources", "--api-group", "metrics.k8s.io", "-o", "name"); err != nil || strings.Join(strings.Fields(out), " ") != "nodes.metrics.k8s.io pods.metrics.k8s.io" {
		t.Errorf("discovery: %q %v", out, err)
	}
	for who, want := range map[string]string{"rivulet:view": "yes", "system:authenticated": "no"} {
		out, _ := kubectl("auth", "can-i", "list", "pods.metrics.k8s.io", "--as", "x", "--as-group", who)
		if !strings.HasPrefix(strings.TrimSpace(out), want) {
			t.Errorf("%s may list pods' metrics: %q, want %s", who, out, want)
		}
	}
	await.NoError(t, ctx, 3*time.Minute, "the autoscaler adds pods", func() error {
		out, err := kubectl("get", "deployment", "busy", "-o", "jsonpath={.status.readyReplicas}")
		if err == nil && strings.TrimSpace(out) != "3" {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
}
