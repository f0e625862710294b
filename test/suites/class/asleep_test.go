package class

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

const ticking = `
apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: "* * * * *"
  timeZone: Europe/Berlin
  jobTemplate:
    spec:
      ttlSecondsAfterFinished: 20
      template:
        spec:
          restartPolicy: Never
          containers: [{name: tick, image: "` + mainjob.Image + `", command: [busybox, "true"]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// TestAsleepAndTrue: nobody asks a virtual cluster for anything. Its CronJob runs, what is finished is removed in time, and its
// Service leads to the pod that the host has made in another's place; in between it sleeps.
func TestAsleepAndTrue(t *testing.T) {
	ctx := suite.Bounded(t, 9*time.Minute)
	a := suite.Devices["a"]
	create(t, ctx, "eve", "--sleep", "12s")
	apply(t, ctx, "eve", strings.Replace(web, "selector:", "replicas: 1\n  selector:", 1)+"---"+ticking)
	await.NoError(t, ctx, time.Minute, "its application runs", func() error {
		out, err := inside(ctx, "eve", "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.phase}")
		if err == nil && out != "Running" {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	// From here on it is looked at from the host alone.
	host := func(args ...string) string {
		t.Helper()
		return labtest.Must(t, ctx, a, append([]string{"rivulet", "kubectl"}, args...)...)
	}
	twin := ""
	for _, ns := range strings.Fields(host("get", "namespaces", "-l", "rivulet.dev/origin", "-o", "jsonpath={.items[*].metadata.name}")) {
		if strings.HasPrefix(ns, "default-eve-") {
			twin = ns
		}
	}
	asleep := func() error {
		out := labtest.Must(t, ctx, a, "rivulet", "vcluster", "list")
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "eve" && f[1] != "Asleep" {
				return fmt.Errorf("%s", line)
			}
		}
		return nil
	}
	await.NoError(t, ctx, 2*time.Minute, "it falls asleep", asleep)
	ticks := map[string]bool{}
	took := await.NoError(t, ctx, 3*time.Minute, "its CronJob has run twice", func() error {
		for _, line := range strings.Split(host("-n", twin, "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.phase}{"\n"}{end}`), "\n") {
			if f := strings.Fields(line); len(f) == 2 && strings.HasPrefix(f[0], "tick-") && f[1] == "Succeeded" {
				ticks[f[0]] = true
			}
		}
		if len(ticks) < 2 {
			return fmt.Errorf("%v", ticks)
		}
		return nil
	})
	t.Logf("two runs of a CronJob after %s, asked by nobody", took.Round(time.Second))
	await.NoError(t, ctx, 2*time.Minute, "it falls asleep in between", asleep)

	before := host("-n", twin, "get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "jsonpath={.items[*].endpoints[*].addresses[0]}")
	host("-n", twin, "delete", "pod", "-l", "app=web", "--wait=false")
	took = await.NoError(t, ctx, 3*time.Minute, "its Service leads to the pod that came instead", func() error {
		now := host("-n", twin, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[?(@.status.phase==\"Running\")].status.podIP}")
		leads := host("-n", twin, "get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "jsonpath={.items[*].endpoints[*].addresses[0]}")
		if now == "" || leads != now || leads == before {
			return fmt.Errorf("the pod has %q, the Service leads to %q, was %q", now, leads, before)
		}
		return nil
	})
	t.Logf("the Service is true again after %s", took.Round(time.Second))
	await.NoError(t, ctx, 3*time.Minute, "what is finished is removed in time", func() error {
		out := host("-n", twin, "get", "pods", "-o", "jsonpath={.items[*].metadata.name}")
		for name := range ticks {
			if strings.Contains(out, name) {
				return fmt.Errorf("%s", out)
			}
		}
		return nil
	})
}

const served = `---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// TestAsleepAndMoved: while a virtual cluster without work of its own sleeps, its pod gets a new sandbox, as after a reboot of
// its device: the same pod, Running all the time, at another address. Its Service leads there without anybody's request.
func TestAsleepAndMoved(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a := suite.Devices["a"]
	create(t, ctx, "una", "--sleep", "12s")
	apply(t, ctx, "una", web+served)
	twin := ""
	await.NoError(t, ctx, time.Minute, "its namespace at the host", func() error {
		for _, ns := range strings.Fields(labtest.Must(t, ctx, a, "rivulet", "kubectl", "get", "namespaces", "-l", "rivulet.dev/origin", "-o", "jsonpath={.items[*].metadata.name}")) {
			if strings.HasPrefix(ns, "default-una-") {
				twin = ns
				return nil
			}
		}
		return fmt.Errorf("none")
	})
	host := func(args ...string) string {
		t.Helper()
		return labtest.Must(t, ctx, a, append([]string{"rivulet", "kubectl", "-n", twin}, args...)...)
	}
	pod := func() string {
		return host("get", "pods", "-l", "app=web", "-o", `jsonpath={range .items[*]}{.metadata.uid} {.status.phase} {.status.podIP}{end}`)
	}
	leads := func() string {
		return host("get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "jsonpath={.items[*].endpoints[?(@.conditions.ready==true)].addresses[0]}")
	}
	became := func() error {
		f := strings.Fields(pod())
		if len(f) != 3 || f[1] != "Running" || leads() != f[2] {
			return fmt.Errorf("the pod is %q, the Service leads to %q", f, leads())
		}
		return nil
	}
	await.NoError(t, ctx, time.Minute, "its Service leads to the pod", became)
	await.NoError(t, ctx, 2*time.Minute, "it sleeps", func() error {
		if out := labtest.Must(t, ctx, a, "rivulet", "vcluster", "list", "-o", "json"); !strings.Contains(out, `"Asleep"`) {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	before := strings.Fields(pod())
	labtest.Must(t, ctx, a, "sh", "-c", `rivulet crictl stopp $(rivulet crictl pods -q --namespace "$1")`, "sh", twin)
	took := await.NoError(t, ctx, 3*time.Minute, "its Service leads to the pod's new address", func() error {
		if now := strings.Fields(pod()); len(now) != 3 || now[2] == before[2] {
			return fmt.Errorf("the pod is %q", now)
		}
		return became()
	})
	if now := strings.Fields(pod()); now[0] != before[0] {
		t.Errorf("the pod is %v, was %v: nothing is shown", now, before)
	}
	t.Logf("the Service is true again after %s", took.Round(time.Second))
}
