package volumes

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

const shifted = `
apiVersion: v1
kind: Namespace
metadata: {name: shift, labels: {rivulet.dev/offload: remote}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shift}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 128Mi}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: db, namespace: shift}
spec:
  strategy: {type: Recreate}
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: db, image: "` + mainjob.Image + `", volumeMounts: [{name: data, mountPath: /data}]}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

// A claim's data go from one neighbour to the other and back, the second time over the
// end of home's supervisor in the middle; the Deployment's pod follows them.
func TestFromNeighbourToNeighbour(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a := suite.Devices["a"]
	for _, node := range []string{"b", "c"} {
		await.NoError(t, ctx, time.Minute, node+" is a virtual node", func() error {
			_, err := a.Kubectl(ctx, "wait", "--for=condition=Ready", "node/"+node, "--timeout=1s")
			return err
		})
	}
	labtest.Must(t, ctx, a, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", shifted)

	// runs waits for the one pod and returns its name and node.
	runs := func() (pod, node string) {
		await.NoError(t, ctx, 2*time.Minute, "one pod runs", func() error {
			out, err := a.Kubectl(ctx, "-n", "shift", "get", "pods", "-l", "app=db", "-o",
				"jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName} {.status.phase}{.metadata.deletionTimestamp}\n{end}")
			f := strings.Fields(out)
			if err == nil && (len(f) != 3 || f[2] != "Running") {
				err = fmt.Errorf("%q", out)
			}
			if err == nil {
				pod, node = f[0], f[1]
			}
			return err
		})
		return pod, node
	}
	inPod := func(script string) (out string) {
		pod, _ := runs()
		await.NoError(t, ctx, time.Minute, "the pod answers", func() (err error) {
			out, err = a.Kubectl(ctx, "-n", "shift", "exec", pod, "--", "sh", "-c", script)
			return err
		})
		return out
	}
	const look = `cd /data && busybox sha256sum big d/x && busybox stat -c '%n %u:%g %a %h %s' big hard d/x && busybox readlink link`
	before := inPod(`cd /data && busybox head -c 40000000 /dev/urandom > big && busybox ln big hard && busybox ln -s big link && busybox mkdir -p d && echo one > d/x && sync && ` + look)
	_, from := runs()
	to := map[string]string{"b": "c", "c": "b"}[from]
	arrived := func(from, to string) {
		t.Helper()
		if _, node := runs(); node != to {
			t.Fatalf("the pod is on %s, the data are on %s", node, to)
		}
		if after := inPod(look); after != before {
			t.Errorf("on %s:\n%s\nwas\n%s", to, after, before)
		}
		for _, d := range []*lab.Device{a, suite.Devices[from]} {
			await.NoError(t, ctx, time.Minute, "no copy is left on "+d.Name, func() error {
				left, err := filepath.Glob(d.Path("/var/lib/rivulet/storage/*"))
				if err == nil && len(left) > 0 {
					err = fmt.Errorf("%q", left)
				}
				return err
			})
		}
	}

	begun := time.Now()
	out := labtest.Must(t, ctx, a, "rivulet", "move", "volume", "shift/data", to, "--evict")
	t.Logf("40 MB from %s to %s in %.1f s: %s", from, to, time.Since(begun).Seconds(), out)
	arrived(from, to)

	// The command ends with the supervisor, or had its answer before.
	cmd, err := a.Command(ctx, "rivulet", "move", "volume", "shift/data", from, "--evict")
	if err != nil {
		t.Fatal(err)
	}
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, time.Minute, "the move has begun", func() error {
		out, err := a.Kubectl(ctx, "get", "pv", "-o", `jsonpath={.items[*].metadata.annotations.rivulet\.dev/move}`)
		if err == nil && out == "" {
			if at := where(ctx, a); at != from { // else it was quick
				err = fmt.Errorf("the data are on %q", at)
			}
		}
		return err
	})
	if err := a.Kill(ctx, "supervisor"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		if _, ended := errors.AsType[*exec.ExitError](err); !ended {
			t.Error(err)
		}
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 2*time.Minute, "the move has gone on", func() error {
		if at := where(ctx, a); at != from {
			return fmt.Errorf("the data are on %q", at)
		}
		return nil
	})
	arrived(to, from)

	labtest.Kubectl(t, ctx, a, "delete", "namespace", "shift", "--wait=false")
	for _, d := range suite.All() {
		await.NoError(t, ctx, 2*time.Minute, "nothing of it is left on "+d.Name, func() error {
			left, err := filepath.Glob(d.Path("/var/lib/rivulet/storage/*shift*"))
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("%q", left)
			}
			return err
		})
	}
}

// where is the virtual node that has the data of the bound claim, or why there is none.
func where(ctx context.Context, a *lab.Device) string {
	name, err := a.Kubectl(ctx, "-n", "shift", "get", "pvc", "data", "-o", "jsonpath={.spec.volumeName} {.status.phase}{.metadata.deletionTimestamp}")
	if err != nil {
		return err.Error()
	}
	f := strings.Fields(name)
	if len(f) != 2 || f[1] != "Bound" {
		return name
	}
	node, err := a.Kubectl(ctx, "get", "pv", f[0], "-o", "jsonpath={.spec.nodeAffinity.required.nodeSelectorTerms[*].matchExpressions[*].values[*]}")
	if err != nil {
		return err.Error()
	}
	return node
}
