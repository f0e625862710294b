package volumes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

const database = `
apiVersion: v1
kind: Namespace
metadata: {name: lab, labels: {rivulet.dev/offload: remote, rivulet.dev/offload-to: b}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: lab}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: db, image: "` + mainjob.Image + `", volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
`

// What a StatefulSet writes on a neighbour is there for its next pod and after a power
// cut there, comes home byte for byte, and goes back.
func TestDataOnANeighbour(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a, b := suite.Devices["a"], suite.Devices["b"]
	kubectl := func(args ...string) string {
		return labtest.Must(t, ctx, a, append([]string{"rivulet", "kubectl", "-n", "lab"}, args...)...)
	}
	runsOn := func(node string) {
		t.Helper()
		await.NoError(t, ctx, 2*time.Minute, "db-0 runs on "+node, func() error {
			got, err := a.Kubectl(ctx, "-n", "lab", "get", "pod", "db-0", "-o", "jsonpath={.spec.nodeName} {.status.phase} {.metadata.deletionTimestamp}{.status.message}")
			if err == nil && got != node+" Running " {
				err = fmt.Errorf("%q", got)
			}
			return err
		})
	}
	await.NoError(t, ctx, time.Minute, "b is a virtual node", func() error {
		_, err := a.Kubectl(ctx, "wait", "--for=condition=Ready", "node/b", "--timeout=1s")
		return err
	})
	labtest.Must(t, ctx, a, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", database)
	runsOn("b")

	kubectl("exec", "db-0", "--", "sh", "-c", `busybox head -c 5000000 /dev/urandom > /data/big && busybox ln /data/big /data/hard && busybox ln -s big /data/link &&
		busybox mkdir -p /data/d && echo one > /data/d/x && busybox chmod 640 /data/d/x && sync`)
	sums := func() string {
		out := ""
		await.NoError(t, ctx, time.Minute, "the data are read", func() (err error) {
			out, err = a.Kubectl(ctx, "-n", "lab", "exec", "db-0", "--", "sh", "-c",
				`cd /data && busybox sha256sum big hard link d/x && busybox stat -c '%n %u:%g %a %h %s' big hard d/x && busybox readlink link`)
			return err
		})
		return out
	}
	before := sums()
	if !strings.Contains(before, " 640 1 4") || !strings.Contains(before, " 644 2 5000000") {
		t.Fatal(before)
	}
	same := func(when string) {
		t.Helper()
		if after := sums(); after != before {
			t.Fatalf("%s:\n%s\nwas\n%s", when, after, before)
		}
	}

	kubectl("delete", "pod", "db-0", "--wait")
	runsOn("b")
	same("after a new pod")
	// A pod waits for its volume: why names where that is, and what ends it.
	explained := func(what string, words ...string) (out string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, "why "+what+" has "+strings.Join(words, ", "), func() error {
			out = labtest.Output(t, ctx, a, "rivulet", "why", what, "-n", "lab")
			for _, w := range words {
				if !strings.Contains(out, w) {
					return fmt.Errorf("%q is not in\n%s", w, out)
				}
			}
			return nil
		})
		return out
	}
	labtest.Must(t, ctx, a, "rivulet", "cordon", "b")
	kubectl("delete", "pod", "db-0", "--wait")
	for _, what := range []string{"db-0", "sts/db"} {
		explained(what, "its volume (claim data-db-0) is on b: b takes no new pods (cordoned)", "cure: rivulet uncordon b; or: rivulet move volume lab/data-db-0 home\n")
	}
	explained("pvc/data-db-0", "the data are on b: b takes no new pods (cordoned)", "cure: rivulet uncordon b\n")
	labtest.Must(t, ctx, a, "rivulet", "uncordon", "b")
	runsOn("b")
	same("after b was cordoned")
	if err := b.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"db-0", "sts/db", "pvc/data-db-0", "ns/lab", "peer/b", "node/b"} {
		explained(what, "b is not reached", "rivulet doctor peer b; or: if it is gone for good: rivulet unpeer b --force\n")
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	runsOn("b")
	same("after a power cut of the neighbour")

	refused(t, ctx, a)

	begun := time.Now()
	out := labtest.Must(t, ctx, a, "rivulet", "move", "volume", "lab/data-db-0", "home", "--evict")
	t.Logf("moved home in %.1f s: %s", time.Since(begun).Seconds(), out)
	if !strings.HasSuffix(out, "the data of lab/data-db-0 are at home") {
		t.Error(out)
	}
	labtest.Must(t, ctx, a, "rivulet", "offload", "lab", "--create", "--when", "burst")
	kubectl("delete", "pod", "db-0", "--wait", "--ignore-not-found") // it was made to run away only
	runsOn("a")
	same("after it was moved home")
	await.NoError(t, ctx, time.Minute, "nothing is left on b", func() error {
		left, err := filepath.Glob(b.Path("/var/lib/rivulet/storage/*"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%q", left)
		}
		return err
	})

	last := labtest.Must(t, ctx, a, "rivulet", "move", "volume", "lab/data-db-0", "b", "--evict", "-o", "json")
	if lines := strings.Split(last, "\n"); !strings.Contains(lines[len(lines)-1], `"over":true`) {
		t.Error(last)
	}
	runsOn("b")
	same("after it went back")

	// What is there holds the twin; the user is told which claim.
	if out := labtest.Must(t, ctx, a, "rivulet", "unoffload", "lab", "--yes"); !strings.Contains(out, "data-db-0") || !strings.Contains(out, "rivulet move volume") {
		t.Error(out)
	}
	kubectl("delete", "statefulset", "db", "--wait")
	kubectl("delete", "pvc", "data-db-0", "--wait")
	await.NoError(t, ctx, 2*time.Minute, "data and twin are gone with the claim", func() error {
		if left, _ := os.ReadDir(b.Path("/var/lib/rivulet/storage")); len(left) > 0 {
			return fmt.Errorf("%s", left[0].Name())
		}
		out, err := b.Kubectl(ctx, "get", "namespace", "-l", "rivulet.dev/origin", "-o", "name")
		if err == nil && out != "" {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
}

// refused are moves that cannot be: exit code 1, one line with a cure, nothing touched.
func refused(t *testing.T, ctx context.Context, a *lab.Device) {
	tries := []struct{ claim, to, want string }{
		{"lab/none", "home", "there is no claim lab/none; see: kubectl get pvc"},
		{"lab/data-db-0", "home", "is in use by db-0; stop what uses it"},
		{"lab/data-db-0", "b", "on b already"},
		{"lab/data-db-0", "nowhere", "write home or a name that rivulet peers shows"},
	}
	for _, x := range tries {
		r := labtest.On(t, ctx, a, "rivulet", "move", "volume", x.claim, x.to)
		if r.Code != 1 || !strings.Contains(r.ErrOut, x.want) || strings.Count(r.ErrOut, "\n") != 1 {
			t.Errorf("%s to %s: exit code %d, %q, want %q", x.claim, x.to, r.Code, r.ErrOut, x.want)
		}
	}
	if r := labtest.On(t, ctx, a, "rivulet", "unpeer", "b"); r.Code != 1 || !strings.Contains(r.ErrOut, "the data of lab/data-db-0 are on b and would be lost") {
		t.Errorf("unpeer with data there: exit code %d, %q", r.Code, r.ErrOut)
	}
	// All of its cables: c would carry what a and b have to say to each other.
	if err := suite.Lab.Cut("b", ""); err != nil {
		t.Fatal(err)
	}
	// Until that is noticed a move would begin, and wait for the peer.
	await.NoError(t, ctx, time.Minute, "b is seen to be away", func() error {
		_, err := a.Kubectl(ctx, "wait", "--for=condition=Ready=false", "node/b", "--timeout=1s")
		return err
	})
	if r := labtest.On(t, ctx, a, "rivulet", "move", "volume", "lab/data-db-0", "home", "--evict"); r.Code != 1 || !strings.Contains(r.ErrOut, "cannot be reached") {
		t.Errorf("a peer that is away: exit code %d, %q", r.Code, r.ErrOut)
	}
	if err := suite.Lab.Heal(); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, time.Minute, "b is back", func() error {
		_, err := a.Kubectl(ctx, "wait", "--for=condition=Ready", "node/b", "--timeout=1s")
		return err
	})
}
