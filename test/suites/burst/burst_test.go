package burst

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/campus"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

const image = "rivulet.dev/demo-web:1"

// work is what home sends away: a Deployment with a ConfigMap, and a Job that is done
// at once.
const work = `
apiVersion: v1
kind: Namespace
metadata: {name: lab, labels: {rivulet.dev/offload: remote}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: lab}
data: {greeting: from home}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: lab}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: ` + image + `
        imagePullPolicy: Never
        securityContext: {runAsUser: 1000}
        env:
        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: GREETING, valueFrom: {configMapKeyRef: {name: settings, key: greeting}}}
`

// The whole story without a network: what is missing is told, the Role that is printed
// is enough, pods run there within the campus's rules, survive the restarts of both
// sides, and nothing is left in the end.
func TestBatchAtACampus(t *testing.T) {
	ctx := suite.Bounded(t, 15*time.Minute)
	home := suite.Devices["a"]
	there := becomeCampus(t, ctx)
	kubeconfig, err := there.Enrol(ctx)
	must(t, err)
	must(t, os.WriteFile(home.Path("/root/campus.kubeconfig"), []byte(kubeconfig), 0o600))
	must(t, suite.Lab.Heal())

	add := []string{"rivulet", "burst", "add", "campus", "--kubeconfig", "/root/campus.kubeconfig", "--limits", "cpu=8,memory=512Mi", "--network", "none"}
	var denied labtest.Result
	await.NoError(t, ctx, time.Minute, "without rights nothing is added, and it is told what is missing", func() error {
		if denied = labtest.On(t, ctx, home, add...); denied.Code != 3 {
			return fmt.Errorf("exit code %d: %s%s", denied.Code, denied.Out, denied.ErrOut)
		}
		return nil
	})
	_, role, ok := strings.Cut(denied.Out, "The smallest Role that has all of it:\n\n")
	if !ok || !strings.Contains(denied.Out, "create replicasets.apps") {
		t.Fatalf("%s%s", denied.Out, denied.ErrOut)
	}
	must(t, there.Apply(ctx, role))
	await.NoError(t, ctx, time.Minute, "with that Role it is added", func() error {
		if r := labtest.On(t, ctx, home, add...); r.Code != 0 {
			return fmt.Errorf("exit code %d: %s%s", r.Code, r.Out, r.ErrOut)
		}
		return nil
	})
	raw, err := os.ReadFile(home.Path("/var/lib/rivulet/state.db"))
	must(t, err)
	if strings.Contains(string(raw), "tls-server-name: campus") {
		t.Error("the credential is readable in state.db")
	}
	apply(t, ctx, home, work)
	pod := running(t, ctx, home)

	t.Run("what runs there", func(t *testing.T) {
		if out := labtest.Must(t, ctx, home, "rivulet", "burst", "status", "campus"); !strings.Contains(out, "Ready") || !strings.Contains(out, "restricted") {
			t.Errorf("%s", out)
		}
		env := labtest.Must(t, ctx, there.Device, "sh", "-c", "tr '\\0' '\\n' < /proc/$(pgrep -u 1000 -n .)/environ")
		for _, want := range []string{"POD=" + pod, "GREETING=from home"} {
			if !strings.Contains(env, want) {
				t.Errorf("the pod does not have %s", want)
			}
		}
		if _, err := home.Kubectl(ctx, "logs", "-n", "lab", pod); err != nil {
			t.Error(err)
		}
	})
	t.Run("streams", func(t *testing.T) { streams(t, ctx, home, pod) })
	before := uids(t, ctx, there)
	t.Run("a restart of home", func(t *testing.T) {
		must(t, home.Stop(ctx))
		must(t, home.Start(ctx))
		must(t, home.WaitReady(ctx))
		if again := running(t, ctx, home); again != pod || uids(t, ctx, there) != before {
			t.Errorf("pod %s was %s; at the campus %s, were %s", again, pod, uids(t, ctx, there), before)
		}
	})
	t.Run("the way is cut", func(t *testing.T) {
		must(t, suite.Lab.Cut("a", "b"))
		await.NoError(t, ctx, 2*time.Minute, "the node is NotReady and says why", func() error {
			out, err := home.Kubectl(ctx, "get", "node", "burst-campus", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]}`)
			if err != nil || !strings.Contains(out, `"False"`) || !strings.Contains(out, "not reached") {
				return fmt.Errorf("%s %w", out, err)
			}
			return nil
		})
		must(t, suite.Lab.Heal())
		await.NoError(t, ctx, 2*time.Minute, "and Ready again", func() error { return ready(ctx, home) })
		if now := uids(t, ctx, there); now != before {
			t.Errorf("at the campus %s, were %s", now, before)
		}
	})
	survive(t, ctx, home, there)
	t.Run("removed", func(t *testing.T) {
		if out := labtest.Must(t, ctx, home, "rivulet", "burst", "remove", "campus", "--yes"); !strings.Contains(out, "is removed") {
			t.Errorf("%s", out)
		}
		await.NoError(t, ctx, time.Minute, "nothing is left there and here", func() error {
			out, err := there.Kubectl(ctx, "get", "pods,replicasets,jobs,configmaps,secrets", "-n", campus.Namespace, "-l", "rivulet.dev/burst-home", "-o", "name")
			if err != nil || strings.TrimSpace(out) != "" {
				return fmt.Errorf("%s %w", out, err)
			}
			if out, _ := home.Kubectl(ctx, "get", "nodes", "-o", "name"); strings.Contains(out, "burst-campus") {
				return errors.New("the virtual node is there still")
			}
			return nil
		})
	})
}

func becomeCampus(t *testing.T, ctx context.Context) *campus.Campus {
	t.Helper()
	d := suite.Devices["b"]
	labtest.Must(t, ctx, d, "rivulet", "ctr", "-n", "k8s.io", "images", "import", "/opt/rivulet/demo-web.tar")
	there, err := campus.Become(ctx, d, "10.77.0.12")
	must(t, err)
	return there
}

func apply(t *testing.T, ctx context.Context, d *lab.Device, manifests string) {
	t.Helper()
	path := filepath.Join("/root", "manifests.yaml")
	must(t, os.WriteFile(d.Path(path), []byte(manifests), 0o600))
	if _, err := d.Kubectl(ctx, "apply", "-f", path); err != nil {
		t.Fatal(err)
	}
}

// running waits until the pod runs away, and returns its name.
func running(t *testing.T, ctx context.Context, home *lab.Device) (name string) {
	t.Helper()
	await.NoError(t, ctx, 2*time.Minute, "the pod runs at the campus", func() error {
		out, err := home.Kubectl(ctx, "get", "pods", "-n", "lab", "-l", "app=web", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName} {.status.phase} {.status.message}{"\n"}{end}`)
		fields := strings.Fields(out)
		if err != nil || len(fields) != 3 || fields[1] != "burst-campus" || fields[2] != "Running" {
			return fmt.Errorf("%s %w", out, err)
		}
		if err := ready(ctx, home); err != nil {
			return err
		}
		name = fields[0]
		return nil
	})
	return name
}

func ready(ctx context.Context, home *lab.Device) error {
	out, err := home.Kubectl(ctx, "get", "node", "burst-campus", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	if err != nil || out != "True" {
		return fmt.Errorf("node: %s %w", out, err)
	}
	return nil
}

func uids(t *testing.T, ctx context.Context, c *campus.Campus) string {
	t.Helper()
	out, err := c.Kubectl(ctx, "get", "pods", "-n", campus.Namespace, "-o", "jsonpath={.items[*].metadata.uid}")
	must(t, err)
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
