package network

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// A LAN that has the cluster's networks is shown in seconds, and the cure works on the device: it
// begins anew with networks that nobody has, and its pods, Services and peers work. The last test
// of the suite: b is another cluster afterwards.
func TestALANOfTheClustersNetworks(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	lan := func(what string) {
		labtest.Output(t, ctx, b, "sh", "-c", "for a in 10.42.0.9/24 198.19.0.9/24; do ip addr "+what+" $a dev eth0; done")
	}
	anew := func() {
		labtest.Output(t, ctx, b, "rivulet", "reset", "--yes")
		if err := b.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if err := b.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	shown := func(want bool) func() error {
		return func() error {
			out, _ := b.Run(ctx, "rivulet", "status")
			if strings.Contains(out, "[cidr]") != want || want && !(strings.Contains(out, "10.42.0.0/24 on eth0") && strings.Contains(out, "rivulet reset")) {
				return fmt.Errorf("%s", out)
			}
			return nil
		}
	}
	lan("add")
	await.NoError(t, ctx, 15*time.Second, "the conflict is shown", shown(true))
	anew()
	await.NoError(t, ctx, 15*time.Second, "the conflict is gone", shown(false))
	if got := labtest.Output(t, ctx, b, "rivulet", "kubectl", "get", "node", b.Name, "-o", "jsonpath={.spec.podCIDR} {.status.addresses[0].address}"); !strings.HasPrefix(got, "10.52.") || !strings.Contains(got, " 198.18.") {
		t.Errorf("pods and node have %s", got)
	}
	if err := mainjob.ImportImage(ctx, []*lab.Device{b}); err != nil {
		t.Fatal(err)
	}
	pod(t, ctx, b, "here")
	for _, d := range []*lab.Device{a, b} {
		if err := d.WaitPeered(ctx, 1); err != nil {
			t.Fatal(err)
		}
	}
	labtest.Kubectl(t, ctx, b, "create", "namespace", "away")
	labtest.Kubectl(t, ctx, b, "label", "namespace", "away", "rivulet.dev/offload=remote")
	await.NoError(t, ctx, time.Minute, "a pod is made away", func() error {
		_, err := b.Kubectl(ctx, "run", "-n", "away", "there", "--image="+mainjob.Image)
		return err
	})
	labtest.Kubectl(t, ctx, b, "wait", "-n", "away", "--for=condition=Ready", "pod/there", "--timeout=60s")
	labtest.Kubectl(t, ctx, b, "expose", "-n", "away", "pod", "there", "--port=80", "--target-port=8080")
	here := labtest.Output(t, ctx, b, "rivulet", "kubectl", "get", "pod", "here", "-o", "jsonpath={.status.podIP}")
	for _, c := range [][]string{{"exec", "here", "--", "web", "get", "http://there.away/"}, {"exec", "-n", "away", "there", "--", "web", "get", "http://" + here + ":8080/"}} {
		await.NoError(t, ctx, 30*time.Second, strings.Join(c, " "), func() error { _, err := b.Kubectl(ctx, c...); return err })
	}
	lan("del")
	anew()
	if got := labtest.Output(t, ctx, b, "rivulet", "kubectl", "get", "node", b.Name, "-o", "jsonpath={.spec.podCIDR}"); !strings.HasPrefix(got, "10.42.") {
		t.Errorf("on a LAN of its own range pods have %s", got)
	}
	for _, d := range []*lab.Device{a, b} {
		if err := d.WaitPeered(ctx, 1); err != nil {
			t.Error(err)
		}
	}
}
