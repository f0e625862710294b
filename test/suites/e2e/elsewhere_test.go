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

// Two providers that are no peers of each other: the pods of a at b and at c reach each other through a, by name and by
// their addresses at home, and see each other under these. Pods of b's owner do not. When b and c become peers, the pods
// talk directly, and back; no new connection fails meanwhile.
func TestPodsAtProvidersThatAreNoPeers(t *testing.T) {
	ctx := need(t, 8*time.Minute)
	const ns = "relayed"
	a, b, c := devices["a"], devices["b"], devices["c"]
	namespace := func(when string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"rivulet.dev/offload":%q}}}`, ns, when)
	}
	pod := func(name, target string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%[1]q,"namespace":%[4]q,"labels":{"app":%[1]q}},"spec":{"terminationGracePeriodSeconds":1,"nodeSelector":%[2]s,
"containers":[{"name":"web","image":%[3]q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":%[1]q,"namespace":%[4]q},"spec":{"selector":{"app":%[1]q},"ports":[{"port":80,"targetPort":8080}]}}`, name, target, mainjob.Image, ns)
	}
	peered := func() {
		t.Helper()
		for _, x := range [][2]string{{"b", "c"}, {"c", "b"}} {
			if _, err := devices[x[0]].Run(ctx, "rivulet", "peer", x[1], "--yes"); err != nil {
				t.Log(err) // the other one is asked first
			}
		}
		for _, d := range []*lab.Device{b, c} {
			if err := d.WaitPeered(ctx, 2); err != nil {
				t.Fatal(err)
			}
		}
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		for _, d := range []*lab.Device{a, b} {
			d.Kubectl(ctx, "delete", "namespace", ns, "--wait=false", "--ignore-not-found") //nolint:errcheck // the next test looks
		}
	}()
	labtest.Must(t, ctx, b, "rivulet", "deny", "c", "--yes")
	defer peered()
	// relay waits until a relays between b and c, or does no longer.
	relay := func(want bool) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, fmt.Sprintf("relayed: %v", want), func() error {
			out, err := a.Run(ctx, "rivulet", "peers", "-o", "wide")
			if err == nil && strings.Contains(out, "pods there reach those on c through this cluster") != want {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
	}
	apply(t, ctx, b, namespace("off"), pod("own", "{}"))
	apply(t, ctx, a, namespace("remote"), pod("at-b", `{"rivulet.dev/target":"b"}`), pod("at-c", `{"rivulet.dev/target":"c"}`))
	at := map[string]string{}
	for _, name := range []string{"at-b", "at-c"} {
		await.NoError(t, ctx, time.Minute, name+" runs", func() error {
			out, err := a.Kubectl(ctx, "-n", ns, "get", "pod", name, "-o", "jsonpath={.status.phase} {.status.podIP}")
			phase, addr, _ := strings.Cut(out, " ")
			if err == nil && (phase != "Running" || addr == "") {
				err = fmt.Errorf("%s", out)
			}
			at[name] = addr
			return err
		})
	}
	relay(true)
	in := func(d *lab.Device, pod string, args ...string) (string, error) {
		return d.Kubectl(ctx, append([]string{"-n", ns, "exec", pod, "--"}, args...)...)
	}
	meet := func(step int) {
		t.Helper()
		for _, x := range [][2]string{{"at-b", "at-c"}, {"at-c", "at-b"}} {
			await.NoError(t, ctx, 40*time.Second, x[0]+" reaches "+x[1]+" by its name", func() error {
				_, err := in(a, x[0], "web", "get", "http://"+x[1]+"/")
				return err
			})
			await.NoError(t, ctx, 40*time.Second, x[0]+" reaches "+x[1]+" by its address", func() error {
				out, err := in(a, x[0], "web", "get", "http://"+at[x[1]]+":8080/"+fmt.Sprint(step))
				if err == nil && !strings.Contains(out, x[1]) {
					err = fmt.Errorf("%s answers", out)
				}
				return err
			})
			await.NoError(t, ctx, 20*time.Second, x[1]+" sees "+x[0]+" under its address at home", func() error {
				out, err := a.Kubectl(ctx, "-n", ns, "logs", x[1])
				if err == nil && !strings.Contains(out, fmt.Sprintf("answered /%d to %s\n", step, at[x[0]])) {
					err = fmt.Errorf("%s is not in the log, which ends: %s", at[x[0]], out[max(0, len(out)-200):])
				}
				return err
			})
		}
	}
	took := func(how string) {
		t.Helper()
		began := time.Now()
		if _, err := in(a, "at-b", "web", "get", "-n", "500", "http://"+at["at-c"]+":8080/"); err != nil {
			t.Error(err)
		}
		t.Logf("a request between b and c %s: %s", how, (time.Since(began) / 500).Round(10*time.Microsecond))
	}
	meet(0)
	took("through home")
	if out, err := a.Run(ctx, "rivulet", "trace", ns+"/at-c", "--from", ns+"/at-b"); !strings.Contains(out, "b and c are no peers of each other") {
		t.Errorf("rivulet trace: %v %s", err, out)
	}
	// The addresses by which home relays are of its own pod network; a pod of b's owner does not get there.
	endpoint := func() string {
		t.Helper()
		return labtest.Kubectl(t, ctx, b, "get", "endpointslices", "-A", "-l", "kubernetes.io/service-name=at-c", "-o", "jsonpath={.items[*].endpoints[*].addresses[0]}")
	}
	through := endpoint()
	if out, err := in(b, "own", "web", "get", "http://"+through+":8080/"); err == nil || !strings.Contains(err.Error(), "Timeout exceeded") && !strings.Contains(err.Error(), "deadline exceeded") {
		t.Errorf("a pod of b's owner at %s: %s %v, want silence", through, out, err)
	}

	for i, step := range []struct {
		how    string
		change func()
		relay  bool
	}{{"directly", peered, false}, {"through home again", func() { labtest.Must(t, ctx, b, "rivulet", "deny", "c", "--yes") }, true}} {
		stop, end := context.WithCancel(ctx)
		done := make(chan error, 1)
		if !step.relay { // a link that is cut breaks what uses it, one that is made does not
			go func() {
				for stop.Err() == nil {
					for _, url := range []string{"http://at-c/", "http://" + at["at-c"] + ":8080/"} {
						if _, err := in(a, "at-b", "web", "get", "-n", "20", url); err != nil {
							done <- err
							return
						}
					}
				}
				done <- nil
			}()
		} else {
			done <- nil
		}
		step.change()
		relay(step.relay)
		await.True(t, 20*time.Second, "at b the Service leads there "+step.how, func() bool { return (endpoint() == through) == step.relay })
		meet(i + 1)
		end()
		if err := <-done; err != nil {
			t.Errorf("a connection failed when they began to talk %s: %v", step.how, err)
		}
		took(step.how)
	}
}
