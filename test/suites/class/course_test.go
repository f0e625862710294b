package class

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// settings are the device's while a test runs.
const settings = "/etc/rivulet/config.yaml"

func configure(t *testing.T, ctx context.Context, text string) {
	t.Helper()
	a := suite.Devices["a"]
	labtest.Must(t, ctx, a, "sh", "-c", `mkdir -p /etc/rivulet && printf '%s' "$1" > `+settings+".tmp && mv "+settings+".tmp "+settings, "sh", text)
	labtest.Must(t, ctx, a, "rivulet", "config", "reload")
}

// inside is kubectl in a virtual cluster.
func inside(ctx context.Context, name string, args ...string) (string, error) {
	return suite.Devices["a"].Run(ctx, append([]string{"rivulet", "vcluster", "connect", name, "--", "kubectl"}, args...)...)
}

const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: web, image: "` + mainjob.Image + `", resources: {requests: {cpu: 100m}}}
`

const store = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: store}
spec:
  containers: [{name: web, image: "` + mainjob.Image + `", volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

func apply(t *testing.T, ctx context.Context, name, manifest string) {
	t.Helper()
	labtest.Must(t, ctx, suite.Devices["a"], "sh", "-c", `printf '%s' "$2" > /tmp/manifest.yaml && rivulet vcluster connect "$1" -- kubectl apply -f /tmp/manifest.yaml`, "sh", name, manifest)
}

func create(t *testing.T, ctx context.Context, name string, args ...string) {
	t.Helper()
	a := suite.Devices["a"]
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", name, "--yes")
	})
	labtest.Must(t, ctx, a, append([]string{"rivulet", "vcluster", "create", name}, args...)...)
}

// allocatable is the CPU of the node that a virtual cluster has.
func allocatable(ctx context.Context, name string) (string, error) {
	return inside(ctx, name, "get", "nodes", "-o", "jsonpath={.items[*].status.allocatable.cpu}")
}

// TestTheLendingSwitch: nothing is lent to neighbours any more, and virtual clusters go on; nothing is left to virtual
// clusters, and their data stay.
func TestTheLendingSwitch(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	create(t, ctx, "ann")
	labtest.CleanUp(t, func(ctx context.Context) { configure(t, ctx, "") })
	apply(t, ctx, "ann", store)
	runs := func() error {
		out, err := inside(ctx, "ann", "get", "pod", "store", "-o", "jsonpath={.status.phase} {.metadata.deletionTimestamp}")
		if err == nil && strings.TrimSpace(out) != "Running" {
			err = fmt.Errorf("%q", out)
		}
		return err
	}
	await.NoError(t, ctx, 2*time.Minute, "its pod runs", runs)
	if _, err := inside(ctx, "ann", "exec", "store", "--", "sh", "-c", "echo kept > /data/x"); err != nil {
		t.Fatal(err)
	}
	before, err := allocatable(ctx, "ann")
	if err != nil {
		t.Fatal(err)
	}

	configure(t, ctx, "share: {cpu: 0%, memory: 0%, maxPods: 0}\n")
	// A consumer that may not borrow any more would lose its pods 5 s after the change.
	for until := time.Now().Add(12 * time.Second); time.Now().Before(until); {
		if err := runs(); err != nil {
			t.Fatalf("nothing is lent to neighbours, and the pod of a virtual cluster: %v", err)
		}
	}
	if now, err := allocatable(ctx, "ann"); err != nil || now != before {
		t.Errorf("its node has %q (%v), had %q", now, err, before)
	}

	configure(t, ctx, "vclusters: {cpu: 0%}\n")
	await.NoError(t, ctx, 30*time.Second, "nothing is left to virtual clusters", func() error {
		now, err := allocatable(ctx, "ann")
		if err == nil && now != "0" {
			err = fmt.Errorf("%q", now)
		}
		return err
	})
	apply(t, ctx, "ann", strings.Replace(web, "selector:", "replicas: 1\n  selector:", 1))
	await.NoError(t, ctx, 30*time.Second, "a new pod is told why it waits", func() error {
		out, err := inside(ctx, "ann", "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.conditions[*].message}")
		if err == nil && !strings.Contains(out, "too little cpu") {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	if out, err := inside(ctx, "ann", "exec", "store", "--", "cat", "/data/x"); err != nil || strings.TrimSpace(out) != "kept" {
		t.Errorf("its data are %q (%v)", out, err)
	}

	configure(t, ctx, "")
	await.NoError(t, ctx, 30*time.Second, "what waits runs", func() error {
		out, err := inside(ctx, "ann", "get", "pods", "-o", "jsonpath={.items[*].status.phase}")
		if err == nil && out != "Running Running" {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
}

// TestTheCourseIsFull: the members of a class draw from what all have together, first come, first served, with a little kept
// for each; who does not fit in is told so, and runs when there is room.
func TestTheCourseIsFull(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	const pool = 600 // thousandths of a CPU
	configure(t, ctx, fmt.Sprintf("vclusters: {cpu: %d%%}\n", pool/10/runtime.NumCPU()))
	labtest.CleanUp(t, func(ctx context.Context) { configure(t, ctx, "") })
	names := []string{"s1", "s2", "s3"}
	for _, name := range names {
		create(t, ctx, name)
	}
	create(t, ctx, "bounded", "--quota", "cpu=200m")
	for name, want := range map[string]string{"s1": "600m", "s3": "600m", "bounded": "200m"} {
		await.NoError(t, ctx, 30*time.Second, name+" sees what it may use at most", func() error {
			got, err := allocatable(ctx, name)
			if err == nil && got != want {
				err = fmt.Errorf("%q, want %s", got, want)
			}
			return err
		})
	}
	running := func(name string, want int) func() error {
		return func() error {
			out, err := inside(ctx, name, "get", "pods", "-l", "app=web", "-o", "jsonpath={range .items[*]}{.status.phase} {.status.message}{.status.conditions[?(@.type==\"PodScheduled\")].message}\n{end}")
			if n := strings.Count(out, "Running"); err == nil && n != want {
				err = fmt.Errorf("%d run, want %d:\n%s", n, want, out)
			}
			return err
		}
	}
	with := func(replicas int) string {
		return strings.Replace(web, "selector:", fmt.Sprintf("replicas: %d\n  selector:", replicas), 1)
	}
	apply(t, ctx, "s1", with(4))
	took := await.NoError(t, ctx, time.Minute, "the first takes two thirds", running("s1", 4))
	t.Logf("four pods of the first run after %s", took.Round(10*time.Millisecond))
	apply(t, ctx, "s2", with(3))
	await.NoError(t, ctx, time.Minute, "the second gets one pod in", running("s2", 1))
	full := func(name string) func() error {
		return func() error {
			out, err := inside(ctx, name, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.message}")
			if err == nil && (!strings.Contains(out, "the course is full: it requests 100m cpu") || strings.Contains(out, "exceeded quota")) {
				err = fmt.Errorf("%q", out)
			}
			return err
		}
	}
	await.NoError(t, ctx, 30*time.Second, "the second is told that the course is full", full("s2"))
	await.NoError(t, ctx, 30*time.Second, "by an event, too", func() error {
		out, err := inside(ctx, "s2", "get", "events", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "the course is full") {
			err = fmt.Errorf("%q", out)
		}
		return err
	})

	apply(t, ctx, "s1", with(2))
	took = await.NoError(t, ctx, time.Minute, "the second has all of its pods, when the first gives two back", running("s2", 3))
	t.Logf("what waited runs %s after there was room", took.Round(10*time.Millisecond))
	if err := running("s1", 2)(); err != nil {
		t.Error(err)
	}
	// What the owner guarantees is kept free.
	a := suite.Devices["a"]
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "set", "s3", "--guarantee", "cpu=100m")
	apply(t, ctx, "s1", with(6))
	await.NoError(t, ctx, 30*time.Second, "the first is told that the course is full", full("s1"))
	apply(t, ctx, "s3", with(1))
	labtest.CleanUp(t, func(ctx context.Context) {
		if t.Failed() {
			for _, what := range []string{"deploy,rs,pods", "events"} {
				out, err := inside(ctx, "s3", "get", what, "-A")
				t.Log(out, err)
			}
			out, _ := suite.Devices["a"].Run(ctx, "sh", "-c", "grep -v shared_informer /var/lib/rivulet/vclusters/s3/control-plane.log | tail -n 60")
			t.Log(out)
		}
	})
	took = await.NoError(t, ctx, time.Minute, "the one with a guarantee has its pod", running("s3", 1))
	t.Logf("the pod with a guarantee runs after %s", took.Round(10*time.Millisecond))
}
