package burst

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/campus"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// sent is what has to survive, beside the Deployment web: work that is done at once, and
// a Deployment that is deleted while the campus is away.
const sent = `
apiVersion: batch/v1
kind: Job
metadata: {name: done, namespace: lab}
spec: {podReplacementPolicy: Failed, template: {spec: {restartPolicy: Never, containers: [` + shell + `"true"]}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: unwanted, namespace: lab}
spec:
  selector: {matchLabels: {app: unwanted}}
  template:
    metadata: {labels: {app: unwanted}}
    spec: {terminationGracePeriodSeconds: 1, containers: [` + shell + `"sleep 100000"]}]}
`

// brief is a Deployment whose pods are given up at home soon after the campus is: whenever
// the node is NotReady for five seconds, as it may be on a slow machine that starts.
const brief = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: brief, namespace: lab}
spec:
  selector: {matchLabels: {app: brief}}
  template:
    metadata: {labels: {app: brief}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]
      containers: [` + shell + `"sleep 100000"]}]
`

const shell = `{name: c, image: "` + image + `", imagePullPolicy: Never, securityContext: {runAsUser: 1000}, command: [sh, -c, `

// slow is a Job that takes some time, by name.
func slow(name string) string {
	return `
apiVersion: batch/v1
kind: Job
metadata: {name: ` + name + `, namespace: lab}
spec: {podReplacementPolicy: Failed, template: {spec: {restartPolicy: Never, containers: [` + shell + `"sleep 20"]}]}}}
`
}

// survive: whoever is away, and however long, what runs at the campus is found again,
// nothing runs twice, and what is finished stays so.
func survive(t *testing.T, ctx context.Context, home *lab.Device, there *campus.Campus) {
	apply(t, ctx, home, sent)
	pod := running(t, ctx, home)
	await.NoError(t, ctx, 3*time.Minute, "all of it runs there, and the Job is done", func() error {
		if got := phases(t, ctx, there, "unwanted", "done"); got["unwanted"] != "Running" || got["done"] != "Succeeded" {
			return fmt.Errorf("%v", got)
		}
		return done(ctx, home, "done")
	})
	web := theOne(t, ctx, there, "web")

	t.Run("home has no power while work ends", func(t *testing.T) {
		apply(t, ctx, home, slow("blackout"))
		await.NoError(t, ctx, 2*time.Minute, "the Job runs", func() error {
			if got := phases(t, ctx, there, "blackout"); got["blackout"] != "Running" {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
		must(t, home.Kill(ctx, "power"))
		await.NoError(t, ctx, 2*time.Minute, "it ends without home", func() error {
			if got := phases(t, ctx, there, "blackout"); got["blackout"] != "Succeeded" {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
		must(t, home.Start(ctx))
		must(t, home.WaitReady(ctx))
		await.NoError(t, ctx, 2*time.Minute, "home hears that it is done", func() error { return done(ctx, home, "blackout") })
		if again := running(t, ctx, home); again != pod || theOne(t, ctx, there, "web") != web {
			t.Errorf("pod %s was %s; at the campus %s, was %s", again, pod, theOne(t, ctx, there, "web"), web)
		}
		once(t, ctx, there, "done", "web", "unwanted", "blackout")
	})
	t.Run("the campus's API server restarts", func(t *testing.T) {
		must(t, there.Stop(ctx))
		must(t, there.Start(ctx))
		await.NoError(t, ctx, 2*time.Minute, "the node is Ready", func() error { return ready(ctx, home) })
		if again := running(t, ctx, home); again != pod || theOne(t, ctx, there, "web") != web {
			t.Errorf("pod %s was %s; at the campus %s, was %s", again, pod, theOne(t, ctx, there, "web"), web)
		}
	})
	t.Run("the campus is away until pods are given up", func(t *testing.T) {
		for _, work := range []struct{ name, objects string }{{"brief", brief}, {"outage", slow("outage")}} {
			apply(t, ctx, home, work.objects)
			await.NoError(t, ctx, 2*time.Minute, work.name+" runs", func() error {
				if got := phases(t, ctx, there, work.name); got[work.name] != "Running" {
					return fmt.Errorf("%v", got)
				}
				return nil
			})
		}
		before := theOne(t, ctx, there, "brief")
		must(t, suite.Lab.Cut("a", "b"))
		labtest.Must(t, ctx, home, "rivulet", "kubectl", "delete", "deployment", "unwanted", "-n", "lab", "--wait=false")
		await.NoError(t, ctx, 4*time.Minute, "brief's pod is evicted, and its replacement waits", func() error {
			out, err := home.Kubectl(ctx, "get", "pods", "-n", "lab", "-l", "app=brief", "-o", "json")
			if err != nil {
				return err
			}
			var list corev1.PodList
			if err := json.Unmarshal([]byte(out), &list); err != nil {
				return err
			}
			evicted, waiting := 0, 0
			for _, p := range list.Items {
				switch {
				case p.DeletionTimestamp != nil:
					evicted++
				case p.Spec.NodeName == "":
					waiting++
				}
			}
			if len(list.Items) != 2 || evicted != 1 || waiting != 1 {
				return fmt.Errorf("of %d pods %d are evicted and %d wait", len(list.Items), evicted, waiting)
			}
			return nil
		})
		await.NoError(t, ctx, 2*time.Minute, "meanwhile the Job ends there, and all else runs on", func() error {
			got := phases(t, ctx, there, "outage", "brief", "unwanted", "web")
			if got["outage"] != "Succeeded" || got["brief"] != "Running" || got["unwanted"] != "Running" || got["web"] != "Running" {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
		must(t, suite.Lab.Heal())
		await.NoError(t, ctx, 3*time.Minute, "what was given up and what was deleted goes, the replacement runs", func() error {
			got := phases(t, ctx, there, "brief", "unwanted")
			if _, left := got["unwanted"]; left || got["brief"] != "Running" || theOne(t, ctx, there, "brief") == before {
				return fmt.Errorf("%v", got)
			}
			return done(ctx, home, "outage")
		})
		if again := running(t, ctx, home); again != pod || theOne(t, ctx, there, "web") != web {
			t.Errorf("pod %s was %s; at the campus %s, was %s", again, pod, theOne(t, ctx, there, "web"), web)
		}
		once(t, ctx, there, "done", "blackout", "web", "outage")
		for _, name := range []string{"done", "blackout", "outage"} {
			if err := done(ctx, home, name); err != nil {
				t.Errorf("finished, and not any more: %v", err)
			}
		}
	})
}

// done: the Job is complete at home, after one pod.
func done(ctx context.Context, home *lab.Device, name string) error {
	out, err := home.Kubectl(ctx, "get", "job", name, "-n", "lab", "-o", "json")
	if err != nil {
		return err
	}
	var job batchv1.Job
	if err := json.Unmarshal([]byte(out), &job); err != nil {
		return err
	}
	if s := job.Status; s.Succeeded != 1 || s.Failed != 0 || s.CompletionTime == nil {
		return fmt.Errorf("job %s: %+v", name, s)
	}
	return nil
}

// ours are the pods at the campus, by the workload of home whose they are.
func ours(t *testing.T, ctx context.Context, c *campus.Campus) map[string][]corev1.Pod {
	t.Helper()
	out, err := c.Kubectl(ctx, "get", "pods", "-n", campus.Namespace, "-l", "rivulet.dev/burst-home", "-o", "json")
	must(t, err)
	var list corev1.PodList
	must(t, json.Unmarshal([]byte(out), &list))
	by := map[string][]corev1.Pod{}
	for _, p := range list.Items {
		workload, _, _ := strings.Cut(p.Name, "-")
		by[workload] = append(by[workload], p)
	}
	return by
}

// phases are those of the workloads' pods there. Several of one are told as such.
func phases(t *testing.T, ctx context.Context, c *campus.Campus, workloads ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for workload, pods := range ours(t, ctx, c) {
		if !slices.Contains(workloads, workload) {
			continue
		}
		var each []string
		for _, p := range pods {
			each = append(each, string(p.Status.Phase))
		}
		out[workload] = strings.Join(each, "+")
	}
	return out
}

// theOne is the UID of the one pod of a workload there.
func theOne(t *testing.T, ctx context.Context, c *campus.Campus, workload string) string {
	t.Helper()
	pods := ours(t, ctx, c)[workload]
	if len(pods) != 1 {
		return fmt.Sprintf("%d pods", len(pods))
	}
	return string(pods[0].UID)
}

// once: of each of these workloads one container was ever started there, by the
// kubelet's events.
func once(t *testing.T, ctx context.Context, c *campus.Campus, workloads ...string) {
	t.Helper()
	out, err := c.Kubectl(ctx, "get", "events", "-n", campus.Namespace, "--field-selector", "reason=Started,involvedObject.kind=Pod", "-o", "json")
	must(t, err)
	var list corev1.EventList
	must(t, json.Unmarshal([]byte(out), &list))
	starts := map[string]int32{}
	for _, e := range list.Items {
		workload, _, _ := strings.Cut(e.InvolvedObject.Name, "-")
		starts[workload] += max(e.Count, 1)
	}
	// Events end after a quarter of an hour; the one of the last workload is new.
	if last := workloads[len(workloads)-1]; starts[last] == 0 {
		t.Errorf("no event says that %s was started; there are those of %v", last, slices.Sorted(maps.Keys(starts)))
	}
	for _, w := range workloads {
		if starts[w] > 1 {
			t.Errorf("%s was started %d times at the campus", w, starts[w])
		}
	}
}
