package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// One consumer, a, has a pod at b and one at c. They reach each other by name, each way,
// and pods of b's owner do not reach the one at c, though b is a peer of c.
func TestPodsAtTwoProviders(t *testing.T) {
	ctx := need(t, 4*time.Minute)
	a, b := devices["a"], devices["b"]
	namespace := func(when string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"two","labels":{"rivulet.dev/offload":%q}}}`, when)
	}
	item := func(name, selector string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%[1]q,"namespace":"two","labels":{"app":%[1]q}},"spec":{"terminationGracePeriodSeconds":1,"nodeSelector":%[2]s,
"containers":[{"name":"web","image":%[3]q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":%[1]q,"namespace":"two"},"spec":{"selector":{"app":%[1]q},"ports":[{"port":80,"targetPort":8080}]}}`, name, selector, mainjob.Image)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		for _, d := range []*lab.Device{a, b} {
			d.Kubectl(ctx, "delete", "namespace", "two", "--wait=false", "--ignore-not-found") //nolint:errcheck // seen below
		}
		for _, name := range []string{"b", "c"} {
			await.NoError(t, ctx, 0, "no twin is left on "+name, func() error {
				out, err := devices[name].Kubectl(ctx, "get", "namespaces", "-l", "rivulet.dev/origin", "-o", "name")
				if err == nil && out != "" {
					err = fmt.Errorf("%s", out)
				}
				return err
			})
		}
	}()
	apply(t, ctx, b, namespace("off"), item("own", "{}"))
	apply(t, ctx, a, namespace("remote"), item("at-b", `{"rivulet.dev/target":"b"}`), item("at-c", `{"rivulet.dev/target":"c"}`))
	address := func(d *lab.Device, pod string) (addr string) {
		t.Helper()
		await.NoError(t, ctx, 0, pod+" runs", func() error {
			out, err := d.Kubectl(ctx, "-n", "two", "get", "pod", pod, "-o", "jsonpath={.status.phase} {.status.podIP}")
			phase, at, _ := strings.Cut(out, " ")
			if err == nil && (phase != "Running" || at == "") {
				err = fmt.Errorf("%s", out)
			}
			addr = at
			return err
		})
		return addr
	}
	address(a, "at-b")
	atC := address(a, "at-c")
	address(b, "own")
	fetch := func(d *lab.Device, pod, url string) error {
		_, err := d.Kubectl(ctx, "-n", "two", "exec", pod, "--", "web", "get", "-n", "1", url)
		return err
	}
	for _, x := range [][2]string{{"at-b", "at-c"}, {"at-c", "at-b"}} {
		await.NoError(t, ctx, 0, x[0]+" reaches "+x[1], func() error { return fetch(a, x[0], "http://"+x[1]+".two.svc.cluster.local/") })
	}

	// Where b sees the pod at c: in the prefix of c, with the host's part of the address.
	var prefix string
	for _, p := range labtest.Status(t, ctx, b).Peers {
		if p.Name == "c" {
			there := p.PeerMappedCIDR.Masked().Addr().As4()
			parts := strings.Split(atC, ".")
			prefix = fmt.Sprintf("%d.%d.%s.%s", there[0], there[1], parts[2], parts[3])
		}
	}
	if err := fetch(b, "own", "http://"+prefix+":8080/"); err == nil || !strings.Contains(err.Error(), "Timeout exceeded") && !strings.Contains(err.Error(), "deadline exceeded") {
		t.Errorf("a pod of b's owner reaches a's pod at c (%s): %v, want silence", prefix, err)
	}
}
