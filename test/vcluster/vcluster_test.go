package vcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/labtest"
	"rivulet/test/mainjob"
)

const app = `
apiVersion: v1
kind: Namespace
metadata: {name: lab}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: lab}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: lab}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: web, image: "` + mainjob.Image + `", ports: [{name: http, containerPort: 8080}], volumeMounts: [{name: data, mountPath: /data}]}
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: lab}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
`

// view is what the test reads of a virtual cluster.
type view struct {
	State   string
	PID     int
	Private int64
}

// TestPodsRunAtTheHost is a user's day: a virtual cluster is made, an application with a volume
// runs in it and is used, goes on while its control plane sleeps, and is gone with it.
func TestPodsRunAtTheHost(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	a := suite.Devices["a"]
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "create", "dev", "--sleep", "15s")
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "connect", "dev", "--kubeconfig", "/tmp/dev.yaml")
	inside := func(ctx context.Context, args ...string) (string, error) {
		return a.Run(ctx, append([]string{"rivulet", "kubectl", "--kubeconfig", "/tmp/dev.yaml"}, args...)...)
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := inside(ctx, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	state := func() (v view) {
		t.Helper()
		if err := json.Unmarshal([]byte(labtest.Must(t, ctx, a, "rivulet", "vcluster", "describe", "dev", "-o", "json")), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	if _, err := a.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl --kubeconfig /tmp/dev.yaml apply -f -`, "apply", app); err != nil {
		t.Fatal(err)
	}
	took := labtest.Eventually(t, ctx, 2*time.Minute, "two pods run", func() error {
		out, err := inside(ctx, "-n", "lab", "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.phase}")
		if err == nil && out != "Running Running" {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	t.Logf("application to Running: %s; its process has %d MB of its own", took.Round(10*time.Millisecond), state().Private>>20)
	twin := ""
	for _, ns := range strings.Fields(labtest.Must(t, ctx, a, "rivulet", "kubectl", "get", "namespaces", "-l", "rivulet.dev/origin", "-o", "jsonpath={.items[*].metadata.name}")) {
		if strings.HasPrefix(ns, "lab-dev-") {
			twin = ns
		}
	}
	if twin == "" {
		t.Fatal("namespace lab has no twin at the host")
	}

	pods := strings.Fields(must("-n", "lab", "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))
	must("-n", "lab", "exec", pods[0], "--", "sh", "-c", "echo kept > /data/x")
	if out := must("-n", "lab", "exec", pods[1], "--", "cat", "/data/x"); strings.TrimSpace(out) != "kept" {
		t.Errorf("the other pod reads %q", out)
	}
	must("-n", "lab", "logs", pods[0])
	labtest.Eventually(t, ctx, time.Minute, "both pods answer by the name of the Service", func() error {
		out, err := inside(ctx, "-n", "lab", "exec", pods[0], "--", "web", "get", "-n", "20", "http://web.lab.svc.cluster.local/")
		if err != nil {
			return err
		}
		for _, p := range pods {
			if !strings.Contains(out, p) {
				return fmt.Errorf("%s does not answer: %s", p, out)
			}
		}
		return nil
	})
	ip := strings.TrimSpace(must("-n", "lab", "get", "pod", pods[0], "-o", "jsonpath={.status.podIP}"))
	// What it must not reach: the control plane's port, and the API server of the host.
	for port, reached := range map[[2]string]bool{{ip, "8080"}: true, {hostIP(t, ctx), "6443"}: false, {hostIP(t, ctx), "17000"}: false} {
		out, err := inside(ctx, "-n", "lab", "exec", pods[1], "--", "sh", "-c", "busybox nc -w 3 "+port[0]+" "+port[1]+" < /dev/null")
		if (err == nil) != reached {
			t.Errorf("a pod connects to %v: %q %v", port, out, err)
		}
	}

	// One of them goes, another comes.
	must("-n", "lab", "delete", "pod", pods[1], "--wait=false")
	labtest.Eventually(t, ctx, time.Minute, "another pod runs in its place", func() error {
		out, err := inside(ctx, "-n", "lab", "get", "pods", "-l", "app=web", "-o", "jsonpath={range .items[*]}{.metadata.name} {.status.phase} {end}")
		if f := strings.Fields(out); err == nil && (len(f) != 4 || f[1] != "Running" || f[3] != "Running" || strings.Contains(out, pods[1])) {
			err = fmt.Errorf("%q", out)
		}
		return err
	})

	count := func() string {
		return labtest.Must(t, ctx, a, "rivulet", "kubectl", "-n", twin, "get", "pods", "-o", "jsonpath={.items[*].status.phase}")
	}
	labtest.Eventually(t, ctx, 2*time.Minute, "it falls asleep", func() error {
		if v := state(); v.State != "Asleep" || v.PID != 0 {
			return fmt.Errorf("%+v", v)
		}
		return nil
	})
	if got := count(); got != "Running Running" {
		t.Errorf("asleep, at the host there is %q", got)
	}
	if out, err := a.Run(ctx, "rivulet", "kubectl", "-n", twin, "get", "pod", pods[0], "-o", "jsonpath={.status.podIP}"); err != nil || strings.TrimSpace(out) != ip {
		t.Errorf("%q %v, want %s", out, err, ip)
	}
	if out := must("-n", "lab", "exec", pods[0], "--", "cat", "/data/x"); strings.TrimSpace(out) != "kept" { // woken
		t.Errorf("after the wake %q", out)
	}

	began := time.Now()
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "delete", "dev", "--yes")
	t.Logf("deleted in %s", time.Since(began).Round(10*time.Millisecond))
	for what, args := range map[string][]string{
		"namespaces": {"get", "namespaces", "-l", "rivulet.dev/origin", "-o", "name"},
		"pods":       {"get", "pods", "-A", "-l", "rivulet.dev/origin", "-o", "name"},
	} {
		if out := labtest.Must(t, ctx, a, append([]string{"rivulet", "kubectl"}, args...)...); strings.TrimSpace(out) != "" {
			t.Errorf("%s are left: %s", what, out)
		}
	}
	labtest.Eventually(t, ctx, time.Minute, "no data are left", func() error {
		left, err := filepath.Glob(a.Path("/var/lib/rivulet/storage/*"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%q", left)
		}
		return err
	})
	if left, err := os.ReadDir(a.Path("/var/lib/rivulet/vclusters")); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
}

// hostIP is the device's address as its own node has it.
func hostIP(t *testing.T, ctx context.Context) string {
	t.Helper()
	return strings.TrimSpace(labtest.Must(t, ctx, suite.Devices["a"], "rivulet", "kubectl", "get", "nodes", "-o", `jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`))
}
