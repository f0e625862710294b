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

// deployment is one pod with a Service of its name.
func deployment(name string) string {
	return strings.ReplaceAll(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      serviceAccountName: reader
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: "`+mainjob.Image+`", ports: [{containerPort: 8080}]}]
---
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec: {selector: {app: NAME}, ports: [{port: 80, targetPort: 8080}]}
---
`, "NAME", name)
}

// TestTargets: a pod that does not fit on the host runs at its peer, as one of the virtual cluster: logs, exec, Services by
// name both ways, its API. It reaches neither the owner's pods nor another tenant's. It ends with the target, and nothing
// of the virtual cluster is left there after its deletion.
func TestTargets(t *testing.T) {
	ctx := suite.Bounded(t, 9*time.Minute)
	a, b := suite.Devices["a"], suite.Devices["b"]
	for _, name := range []string{"far", "ben"} {
		labtest.CleanUp(t, func(ctx context.Context) { labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", name, "--yes") })
	}
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "create", "far", "--quota", "pods=1", "--targets", "b")
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "create", "ben")
	of := func(name string) func(args ...string) (string, error) {
		return func(args ...string) (string, error) {
			return a.Run(ctx, append([]string{"rivulet", "vcluster", "connect", name, "--", "kubectl"}, args...)...)
		}
	}
	far, ben := of("far"), of("ben")
	own := func(args ...string) (string, error) { return a.Kubectl(ctx, args...) }
	apply := func(name, text string) {
		t.Helper()
		labtest.Must(t, ctx, a, "sh", "-c", `printf '%s' "$1" > /tmp/targets.yaml && rivulet vcluster connect "$2" -- kubectl apply -f /tmp/targets.yaml`, "sh", text, name)
	}
	runs := func(kubectl func(...string) (string, error), app, node string) (pod, ip string) {
		t.Helper()
		took := await.NoError(t, ctx, 2*time.Minute, app+" runs on "+node, func() error {
			out, err := kubectl("get", "pods", "-l", "app="+app, "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {.status.phase} {.spec.nodeName} {.status.conditions[?(@.type=="PodScheduled")].message}{"\n"}{end}`)
			f := strings.Fields(out)
			if err != nil || len(f) != 4 || f[2] != "Running" || node != "" && f[3] != node {
				return fmt.Errorf("%q %w", out, err)
			}
			pod, ip = f[0], f[1]
			return nil
		})
		t.Logf("%s runs on %s after %s", app, node, took.Round(10*time.Millisecond))
		return pod, ip
	}
	account, _, _ := strings.Cut(operator, "---\napiVersion: v1\nkind: Service")
	apply("far", account+"---"+deployment("here"))
	here, hereIP := runs(far, "here", "host")
	apply("far", deployment("there"))
	there, thereIP := runs(far, "there", "b")

	// The owner's pods, one here and one at b, and another tenant's.
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.On(t, ctx, a, "rivulet", "kubectl", "delete", "namespace", "own", "away")
	})
	for ns, app := range map[string]string{"own": "mine", "away": "mineaway"} {
		labtest.Must(t, ctx, a, "rivulet", "kubectl", "create", "namespace", ns)
		if ns == "away" {
			labtest.Must(t, ctx, a, "rivulet", "kubectl", "label", "namespace", ns, "rivulet.dev/offload=remote", "rivulet.dev/offload-to=b")
		}
		labtest.Must(t, ctx, a, "sh", "-c", `printf '%s' "$1" | rivulet kubectl -n "$2" apply -f -`, "sh", account+"---"+deployment(app), ns)
	}
	in := func(ns string) func(...string) (string, error) {
		return func(args ...string) (string, error) { return own(append([]string{"-n", ns}, args...)...) }
	}
	_, mineIP := runs(in("own"), "mine", "a")
	_, awayIP := runs(in("away"), "mineaway", "b")
	apply("ben", account+"---"+deployment("other"))
	other, otherIP := runs(ben, "other", "host")

	exec := func(kubectl func(...string) (string, error), pod string, args ...string) (string, error) {
		return kubectl(append([]string{"exec", pod, "--"}, args...)...)
	}
	says := func(what, pod, want string, args ...string) {
		t.Helper()
		took := await.NoError(t, ctx, 30*time.Second, what, func() error {
			out, err := exec(far, pod, args...)
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("%.200q, want %q", out, want)
			}
			return err
		})
		t.Logf("%s: %s", what, took.Round(10*time.Millisecond))
	}
	says("there reaches here by name", there, here, "web", "get", "http://here.default.svc.cluster.local/")
	says("here reaches there by name", here, there, "web", "get", "http://there.default.svc.cluster.local/")
	says("there reaches here by address", there, here, "web", "get", "http://"+hereIP+":8080/")
	says("here reaches there by address", here, there, "web", "get", "http://"+thereIP+":8080/")
	says("there reads its API", there, "200", "web", "api", "/api/v1/namespaces/default/pods/"+there)
	if out, err := far("logs", there); err != nil || out == "" {
		t.Errorf("logs of there: %q %v", out, err)
	}
	await.NoError(t, ctx, time.Minute, "kubectl top has there", func() error {
		_, err := far("top", "pod", there)
		return err
	})
	refused := func(from, to, ip string, kubectl func(...string) (string, error), pod string) {
		t.Helper()
		if out, err := exec(kubectl, pod, "busybox", "nc", "-w", "3", ip, "8080"); err == nil {
			t.Errorf("%s reaches %s: %q", from, to, out)
		}
	}
	refused("there", "the owner's pod", mineIP, far, there)
	refused("there", "the owner's pod at b", awayIP, far, there)
	refused("there", "another tenant's pod", otherIP, far, there)
	refused("another tenant's pod", "there", thereIP, ben, other)
	if address := strings.TrimSpace(labtest.Must(t, ctx, b, "rivulet", "kubectl", "get", "pods", "-A", "-l", "app=mineaway", "-o", "jsonpath={.items[*].status.podIP}")); address != "" {
		// The address may be one of its own pods at the host, which has the same numbers.
		if out, _ := exec(far, there, "web", "get", "http://"+address+":8080/"); strings.Contains(out, "mineaway") {
			t.Errorf("there reaches the owner's pod at b by b's address: %q", out)
		}
	} else {
		t.Error("the owner's pod at b is not found")
	}

	left := func() (string, error) {
		out, err := b.Kubectl(ctx, "get", "namespaces", "-l", "rivulet.dev/host-cluster", "-o", "name")
		return strings.TrimSpace(out), err
	}
	if out, err := left(); err != nil || out == "" {
		t.Fatalf("no twin at b: %q %v", out, err)
	}
	gone := func() {
		t.Helper()
		took := await.NoError(t, ctx, 2*time.Minute, "nothing is left at b", func() error {
			out, err := left()
			if err == nil && out != "" {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
		t.Logf("nothing is left at b after %s", took.Round(10*time.Millisecond))
	}
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "set", "far", "--targets", "none")
	await.NoError(t, ctx, 2*time.Minute, "another pod waits, with the reason", func() error {
		out, err := far("get", "pods", "-l", "app=there", "-o", `jsonpath={.items[*].status.phase} {.items[*].status.conditions[?(@.type=="PodScheduled")].message}`)
		if err == nil && (!strings.HasPrefix(out, "Pending ") || !strings.Contains(out, "host: too little pods")) {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	gone()

	labtest.Must(t, ctx, a, "rivulet", "vcluster", "set", "far", "--targets", "b")
	runs(far, "there", "b")
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "delete", "far", "--yes")
	gone()
}
