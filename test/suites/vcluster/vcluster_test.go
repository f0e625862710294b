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

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
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
	took := await.NoError(t, ctx, 2*time.Minute, "two pods run", func() error {
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
	await.NoError(t, ctx, time.Minute, "both pods answer by the name of the Service", func() error {
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
	// It reaches its own control plane, and not the API server of the host.
	for port, reached := range map[[2]string]bool{{ip, "8080"}: true, {hostIP(t, ctx), "6443"}: false, {hostIP(t, ctx), "17000"}: true} { // its own
		out, err := inside(ctx, "-n", "lab", "exec", pods[1], "--", "sh", "-c", "busybox nc -w 3 "+port[0]+" "+port[1]+" < /dev/null")
		if (err == nil) != reached {
			t.Errorf("a pod connects to %v: %q %v", port, out, err)
		}
	}

	// One of them goes, another comes.
	must("-n", "lab", "delete", "pod", pods[1], "--wait=false")
	await.NoError(t, ctx, time.Minute, "another pod runs in its place", func() error {
		out, err := inside(ctx, "-n", "lab", "get", "pods", "-l", "app=web", "-o", "jsonpath={range .items[*]}{.metadata.name} {.status.phase} {end}")
		if f := strings.Fields(out); err == nil && (len(f) != 4 || f[1] != "Running" || f[3] != "Running" || strings.Contains(out, pods[1])) {
			err = fmt.Errorf("%q", out)
		}
		return err
	})

	count := func() string {
		return labtest.Must(t, ctx, a, "rivulet", "kubectl", "-n", twin, "get", "pods", "-o", "jsonpath={.items[*].status.phase}")
	}
	await.NoError(t, ctx, 2*time.Minute, "it falls asleep", func() error {
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
	await.NoError(t, ctx, time.Minute, "no data are left", func() error {
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

// TestSnapshotAndCopy: a virtual cluster with a running application is saved, copied beside
// itself, deleted and restored; in each the application runs again.
func TestSnapshotAndCopy(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	a := suite.Devices["a"]
	must := func(args ...string) string { t.Helper(); return labtest.Must(t, ctx, a, args...) }
	inside := func(name string, args ...string) (string, error) {
		return a.Run(ctx, append([]string{"rivulet", "vcluster", "connect", name, "--", "kubectl"}, args...)...)
	}
	runs := func(name string) {
		t.Helper()
		await.NoError(t, ctx, 2*time.Minute, "the application runs in "+name, func() error {
			out, err := inside(name, "-n", "lab", "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.phase}")
			if err == nil && out != "Running Running" {
				err = fmt.Errorf("%q", out)
			}
			if err == nil {
				out, err = inside(name, "-n", "lab", "exec", "deploy/web", "--", "web", "get", "http://web.lab.svc.cluster.local/")
			}
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		})
	}
	defer func() {
		for _, name := range []string{"ann", "ben"} {
			a.Run(context.WithoutCancel(ctx), "rivulet", "vcluster", "delete", name, "--yes") // seen below
		}
	}()
	must("rivulet", "vcluster", "create", "ann")
	must("sh", "-c", `printf %s "$1" > /tmp/app.yaml && rivulet vcluster connect ann -- kubectl apply -f /tmp/app.yaml`, "apply", app)
	runs("ann")
	scale := func(name, replicas string) {
		t.Helper()
		must("rivulet", "vcluster", "connect", name, "--", "kubectl", "-n", "lab", "scale", "deploy/web", "--replicas", replicas)
	}
	holds := func(name, want string) {
		t.Helper()
		scale(name, "2")
		runs(name)
		out := must("rivulet", "vcluster", "connect", name, "--", "kubectl", "-n", "lab", "exec", "deploy/web", "--", "sh", "-c", "cat /data/x /data/big 2>/dev/null | busybox sha256sum")
		if strings.TrimSpace(out) != want {
			t.Errorf("%s has %s, want %s", name, out, want)
		}
	}
	// More than one piece of an archive.
	sum := strings.TrimSpace(must("rivulet", "vcluster", "connect", "ann", "--", "kubectl", "-n", "lab", "exec", "deploy/web", "--", "sh", "-c",
		"echo kept > /data/x && busybox head -c 9000000 /dev/urandom > /data/big && cat /data/x /data/big | busybox sha256sum"))
	must("sh", "-c", "echo some words > /tmp/words")
	if out, err := a.Run(ctx, "rivulet", "vcluster", "snapshot", "ann", "/tmp/ann.snapshot"); err == nil || !strings.Contains(out+err.Error(), "claim lab/data") || !strings.Contains(out+err.Error(), "--without-data") {
		t.Errorf("while pods use the claim: %s %v", out, err)
	}
	must("rivulet", "vcluster", "snapshot", "ann", "/tmp/bare.snapshot", "--without-data")
	scale("ann", "0")
	await.NoError(t, ctx, time.Minute, "no pod has the claim, and it is saved", func() error {
		_, err := a.Run(ctx, "rivulet", "vcluster", "snapshot", "ann", "/tmp/ann.snapshot", "--passphrase-file", "/tmp/words")
		return err
	})
	if out, err := a.Run(ctx, "rivulet", "vcluster", "restore", "/tmp/ann.snapshot", "--as", "ben"); err == nil || !strings.Contains(out+err.Error(), "passphrase") {
		t.Errorf("without the passphrase: %s %v", out, err)
	}
	began := time.Now()
	must("rivulet", "vcluster", "restore", "/tmp/ann.snapshot", "--as", "ben", "--passphrase-file", "/tmp/words")
	t.Logf("restored as a copy in %s", time.Since(began).Round(10*time.Millisecond))
	holds("ben", sum)
	holds("ann", sum) // it was not touched
	must("rivulet", "vcluster", "delete", "ann", "--yes")
	must("rivulet", "vcluster", "restore", "/tmp/ann.snapshot", "--passphrase-file", "/tmp/words")
	holds("ann", sum)
	must("rivulet", "vcluster", "delete", "ann", "--yes")
	const nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  -"
	must("rivulet", "vcluster", "restore", "/tmp/bare.snapshot")
	holds("ann", nothing)
	holds("ben", sum)
	for _, name := range []string{"ann", "ben"} {
		must("rivulet", "vcluster", "delete", name, "--yes")
	}
	if out := must("rivulet", "kubectl", "get", "namespaces", "-l", "rivulet.dev/origin", "-o", "name"); strings.TrimSpace(out) != "" {
		t.Errorf("namespaces are left: %s", out)
	}
}

// TestQuota: a virtual cluster has no more than its quota, over all of its namespaces; with
// another one the pods that wait run.
func TestQuota(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a := suite.Devices["a"]
	must := func(args ...string) string { t.Helper(); return labtest.Must(t, ctx, a, args...) }
	kubectl := func(args ...string) (string, error) {
		return a.Run(ctx, append([]string{"rivulet", "vcluster", "connect", "ann", "--", "kubectl"}, args...)...)
	}
	labtest.CleanUp(t, func(ctx context.Context) { a.Run(ctx, "rivulet", "vcluster", "delete", "ann", "--yes") }) // a test that has failed already
	must("rivulet", "vcluster", "create", "ann", "--quota", "pods=3,cpu=100m,storage=32Mi")
	must("sh", "-c", `printf %s "$1" > /tmp/app.yaml && rivulet vcluster connect ann -- kubectl apply -f /tmp/app.yaml`, "apply", `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: big, namespace: default}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: big, namespace: default}
spec:
  containers: [{name: web, image: "`+mainjob.Image+`", volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: big}}]
`)
	await.NoError(t, ctx, time.Minute, "the owner of a claim that is too large is told", func() error {
		out, err := kubectl("get", "events", "--field-selector", "involvedObject.kind=PersistentVolumeClaim", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "exceeded quota") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	must("rivulet", "vcluster", "connect", "ann", "--", "kubectl", "delete", "pod/big", "pvc/big")
	for _, ns := range []string{"one", "two"} {
		must("sh", "-c", `printf %s "$1" > /tmp/app.yaml && rivulet vcluster connect ann -- kubectl apply -f /tmp/app.yaml`, "apply", `
apiVersion: v1
kind: Namespace
metadata: {name: `+ns+`}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: `+ns+`}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: "`+mainjob.Image+`", resources: {requests: {cpu: 10m}}}]
`)
	}
	running := func(want int) func() error {
		return func() error {
			out, err := kubectl("get", "pods", "-A", "-l", "app=web", "--field-selector", "status.phase=Running", "-o", "name")
			if n := len(strings.Fields(out)); err == nil && n != want {
				err = fmt.Errorf("%d run", n)
			}
			return err
		}
	}
	await.NoError(t, ctx, 2*time.Minute, "as many pods run as the quota has", running(3))
	if out, err := kubectl("get", "node", "host", "-o", "jsonpath={.status.allocatable.pods} {.status.allocatable.cpu}"); err != nil || out != "3 100m" {
		t.Errorf("its node has %q %v", out, err)
	}
	if out := must("rivulet", "vcluster", "describe", "ann"); !strings.Contains(out, "pods 3 of 3") || !strings.Contains(out, "of 32Mi") {
		t.Error(out)
	}
	must("rivulet", "vcluster", "set", "ann", "--quota", "pods=5,storage=32Mi")
	await.NoError(t, ctx, 2*time.Minute, "pods that waited run", running(5))
	must("rivulet", "vcluster", "set", "ann", "--quota", "none")
	await.NoError(t, ctx, 2*time.Minute, "all run", running(6))
	must("rivulet", "vcluster", "delete", "ann", "--yes")
}

// TestObjects: an object makes a virtual cluster, whose kubeconfig is in a Secret and works from
// a pod of the device; commands do not undo what it says; it goes with the object.
func TestObjects(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a := suite.Devices["a"]
	must := func(args ...string) string { t.Helper(); return labtest.Must(t, ctx, a, args...) }
	kubectl := func(args ...string) string {
		t.Helper()
		return must(append([]string{"rivulet", "kubectl"}, args...)...)
	}
	apply := func(text string) {
		t.Helper()
		must("sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", text)
	}
	object := func(spec string) string {
		return "{apiVersion: rivulet.dev/v1alpha1, kind: VirtualCluster, metadata: {name: carl, namespace: course}, spec: {" + spec + "}}\n"
	}
	apply("{apiVersion: v1, kind: Namespace, metadata: {name: course}}\n---\n" + object("quota: {pods: 2}"))
	kubectl("-n", "course", "wait", "--for=condition=Ready", "vc/carl", "--timeout=60s")
	if out := kubectl("-n", "course", "get", "vc", "carl", "--no-headers"); !strings.Contains(out, "Awake") || !strings.Contains(out, "True") {
		t.Error(out)
	}
	kubectl("-n", "course", "run", "argo", "--image="+mainjob.Image, "--overrides", `{"spec":{"containers":[{"name":"argo","image":"`+mainjob.Image+`","volumeMounts":[{"name":"k","mountPath":"/k"}]}],"volumes":[{"name":"k","secret":{"secretName":"carl-kubeconfig"}}]}}`)
	kubectl("-n", "course", "wait", "--for=condition=Ready", "pod/argo", "--timeout=60s")
	// The address in the Secret is true in pods: it answers, and asks who is there.
	address := kubectl("-n", "course", "get", "vc", "carl", "-o", "jsonpath={.status.address}")
	if out := kubectl("-n", "course", "exec", "argo", "--", "cat", "/k/value"); !strings.Contains(out, "server: https://"+address) {
		t.Errorf("%s is not in %s", address, out)
	}
	host, port, _ := strings.Cut(address, ":")
	kubectl("-n", "course", "exec", "argo", "--", "sh", "-c", "busybox nc -w 3 "+host+" "+port+" < /dev/null")
	must("sh", "-c", "rivulet kubectl -n course get secret carl-kubeconfig -o jsonpath='{.data.value}' | base64 -d > /tmp/carl.yaml")
	kubectl("--kubeconfig", "/tmp/carl.yaml", "create", "configmap", "mine")
	for _, verb := range []string{"pause", "resume"} {
		if out, err := a.Run(ctx, "rivulet", "vcluster", verb, "carl"); err == nil || !strings.Contains(out+err.Error(), "kubectl -n course edit virtualcluster carl") {
			t.Errorf("%s: %s %v", verb, out, err)
		}
	}
	if out, err := a.Run(ctx, "rivulet", "vcluster", "delete", "carl", "--yes"); err == nil || !strings.Contains(out+err.Error(), "kubectl -n course delete virtualcluster carl") {
		t.Errorf("%s %v", out, err)
	}
	apply(object("quota: {pods: 4}, sleep: 15s"))
	await.NoError(t, ctx, time.Minute, "it has what the object says", func() error {
		out, err := a.Run(ctx, "rivulet", "vcluster", "describe", "carl")
		if err == nil && (!strings.Contains(out, "pods 0 of 4") || !strings.Contains(out, "after 15s") || !strings.Contains(out, "VirtualCluster course/carl")) {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	kubectl("-n", "course", "wait", "--for=jsonpath={.status.state}=Asleep", "vc/carl", "--timeout=60s")
	kubectl("--kubeconfig", "/tmp/carl.yaml", "get", "configmap", "mine") // woken, and it is the same
	kubectl("delete", "namespace", "course", "--timeout=90s")
	if out := must("rivulet", "vcluster", "list"); !strings.Contains(out, "no virtual cluster") {
		t.Error(out)
	}
}
