package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// quietManifest labels a namespace and makes a pod, a Deployment and a Job in it in the same
// second.
const quietManifest = `{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%[1]q,"labels":{"rivulet.dev/offload":"remote"}}},
{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"quiet","namespace":%[1]q}},
{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"quiet","namespace":%[1]q},"data":{"say":"something"}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":%[1]q},"spec":{"selector":{"app":"web"},"ports":[{"port":80,"targetPort":8080}]}},
{"apiVersion":"v1","kind":"Pod","metadata":{"name":"first","namespace":%[1]q},"spec":{"serviceAccountName":"quiet","terminationGracePeriodSeconds":1,
 "volumes":[{"name":"say","configMap":{"name":"quiet"}}],
 "containers":[{"name":"web","image":"rivulet.dev/demo-web:1","resources":{"requests":{"cpu":"10m","memory":"16Mi"}},
  "volumeMounts":[{"name":"say","mountPath":"/say"}]}]}},
{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":%[1]q},"spec":{"replicas":3,
 "selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"serviceAccountName":"quiet","terminationGracePeriodSeconds":1,
 "containers":[{"name":"web","image":"rivulet.dev/demo-web:1","resources":{"requests":{"cpu":"10m","memory":"16Mi"}}}]}}}},
{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"sum","namespace":%[1]q},"spec":{"template":{"spec":{"serviceAccountName":"quiet","restartPolicy":"Never",
 "containers":[{"name":"sum","image":"rivulet.dev/demo-web:1","command":["/bin/busybox","true"]}]}}}}]}`

// From the first boot of three devices to the end of a namespace that was offloaded, with
// nothing wrong anywhere: no event warns, at home or at a provider, and no device logs a
// warning. It is the first test of the suite that changes anything, because the log counts
// from the beginning.
func TestAQuietRun(t *testing.T) {
	ctx := need(t, 6*time.Minute)
	a := devices["a"]
	namespaces := []string{"quiet-one", "quiet-two", "quiet-three"}
	labtest.CleanUp(t, func(ctx context.Context) {
		_, _ = a.Run(ctx, append([]string{"rivulet", "kubectl", "delete", "namespace", "--ignore-not-found", "--wait=false"}, namespaces...)...)
	})
	for _, ns := range namespaces {
		labtest.Output(t, ctx, a, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", fmt.Sprintf(quietManifest, ns))
	}
	for _, ns := range namespaces {
		await.NoError(t, ctx, 0, "all pods of "+ns+" run away", func() error { return allDone(ctx, a, ns) })
	}
	for _, d := range suite.All() {
		for _, e := range warningEvents(t, ctx, d) {
			if strings.HasPrefix(e.Namespace, "quiet-") && !busy(&e) {
				t.Errorf("%s warns in %s of %s %s: %s: %s", d.Name, e.Namespace, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
			}
		}
	}
	labtest.Kubectl(t, ctx, a, "delete", "deployment", "web", "-n", namespaces[0])
	labtest.Kubectl(t, ctx, a, append([]string{"delete", "namespace"}, namespaces...)...)
	for _, d := range suite.All() {
		await.NoError(t, ctx, 0, "nothing of them is left on "+d.Name, func() error {
			out, err := d.Run(ctx, "rivulet", "kubectl", "get", "namespaces", "-o", "name")
			if err == nil && strings.Contains(out, "quiet-") {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
	}
	for _, d := range suite.All() {
		for _, line := range loggedWarnings(t, d) {
			t.Errorf("%s logs %s", d.Name, line)
		}
	}
}

// allDone says what is missing for the namespace's five pods to run, or to have ended well.
func allDone(ctx context.Context, d *lab.Device, namespace string) error {
	out, err := d.Run(ctx, "rivulet", "kubectl", "get", "pods", "-n", namespace, "-o", "json")
	if err != nil {
		return err
	}
	var pods corev1.PodList
	if err := json.Unmarshal([]byte(out), &pods); err != nil {
		return err
	}
	for _, p := range pods.Items {
		ready := p.Status.Phase == corev1.PodSucceeded
		for _, c := range p.Status.Conditions {
			ready = ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}
		if !ready {
			return fmt.Errorf("%s on %q: %s %s %s", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
	}
	if len(pods.Items) != 5 {
		return fmt.Errorf("%d pods, want 5", len(pods.Items))
	}
	return nil
}

// busy reports whether the event comes of nothing but a machine that is busy: a kubelet has not
// read a Secret or ConfigMap within a second, and reads it again; or kube-apiserver's check of
// cluster addresses, which reads Services and IPAddresses by two watches
// (pkg/registry/core/service/ipallocator/controller/repairip.go of Kubernetes), has seen a new
// Service before its address.
func busy(e *corev1.Event) bool {
	switch e.Reason {
	case "FailedMount":
		return strings.Contains(e.Message, "failed to sync") && strings.Contains(e.Message, "cache: timed out")
	case "ClusterIPNotAllocated":
		return strings.HasPrefix(e.Message, "Cluster IP [") && strings.HasSuffix(e.Message, " is not allocated; repairing")
	}
	return false
}

func warningEvents(t *testing.T, ctx context.Context, d *lab.Device) []corev1.Event {
	t.Helper()
	var list corev1.EventList
	if err := json.Unmarshal([]byte(labtest.Kubectl(t, ctx, d, "get", "events", "-A", "--field-selector", "type=Warning", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// loggedWarnings are the lines of the supervisor's log, since the first boot, that are not
// mere information. What k3s says is in a log of its own.
func loggedWarnings(t *testing.T, d *lab.Device) (lines []string) {
	t.Helper()
	raw, err := os.ReadFile(d.Log())
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(raw)) {
		switch {
		case strings.Contains(line, " level=INFO "), strings.Contains(line, " level=DEBUG "):
			seen++
		default:
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	if seen < 10 {
		t.Errorf("the log of %s has %d lines: is it the right one?", d.Name, seen)
	}
	return lines
}
