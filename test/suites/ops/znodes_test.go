package ops

import (
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/releases"
)

// A server upgrades its worker: drained, tried, in use again. One that fails goes back by itself, and the command says
// so. The last test of the suite: b is a node of c's cluster afterwards.
func TestAServerUpgradesItsWorker(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	file, next, now := other(t, ctx)
	code, err := c.Token(ctx)
	if err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, b, "rivulet", "join", code, "--reset", "--yes")
	labtest.Kubectl(t, ctx, c, "wait", "--for=condition=Ready", "--timeout=90s", "node/b")
	inUse := func() {
		t.Helper()
		if out := labtest.Kubectl(t, ctx, c, "get", "node", "b", "-o", "jsonpath={.spec.unschedulable}"); out != "" {
			t.Errorf("b takes no pods: %s", out)
		}
	}
	upgrade := func(file string) labtest.Result {
		return labtest.On(t, ctx, c, "rivulet", "nodes", "upgrade", file, "--older", "--window", window, "--every", "3s")
	}
	deploy(t, ctx, c, "moves", 4)
	if r := upgrade(file); r.Code != 0 || !strings.Contains(r.Out, "b: "+now+" → "+next) {
		t.Fatalf("%+v", r)
	}
	runs(t, ctx, b, next)
	inUse()
	containers(t, ctx, c, "moves", 4)
	if r := upgrade(file); r.Code != 0 || !strings.Contains(r.Out, "b: it runs that version already") {
		t.Errorf("again: %+v", r)
	}
	if r := upgrade(releases.Sign(t, dir, binaryOf(now), "strange-for-b", releases.Strange, nil)); r.Code == 0 || !strings.Contains(r.ErrOut, "vouches") {
		t.Errorf("a release with a strange key: %+v", r)
	}
	if r := upgrade(releases.Faulty(t, dir, "v3-crash-on-b", "78", releases.Kubernetes(t, releases.Binary("v2/rivulet")))); r.Code == 0 || !strings.Contains(r.ErrOut, "b has gone back to "+next+": it ended by itself 3 times") {
		t.Errorf("a release that ends by itself: %+v", r)
	}
	runs(t, ctx, b, next)
	inUse()
	await.NoError(t, ctx, time.Minute, "b runs pods again", func() error {
		_, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=5s", "node/b")
		return err
	})
}
