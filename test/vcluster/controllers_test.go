package vcluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/await"
	"rivulet/test/labtest"
	"rivulet/test/mainjob"
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
	t.Cleanup(func() { labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", "ann", "--yes") })
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
