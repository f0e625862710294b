package network

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

// Three machines that each have Docker, ufw, Tailscale, other VPNs and bridges, resolvers, renewals and a router without
// Internet: they peer, and pods at home, at b and at c reach each other's Services by name, those at b and at c, which are
// no peers of each other, through home. Logs and exec work. So it is again when b was switched off.
func TestOrdinaryMachines(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	for _, d := range suite.All() { // five devices are too many (docs/design/lab.md)
		if err := d.Kill(ctx, "power"); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		for _, d := range suite.All() {
			if err := d.Start(ctx); err != nil {
				t.Error(err)
			}
		}
		for _, d := range suite.All() {
			if err := d.WaitPeered(ctx, 1); err != nil {
				t.Error(err)
			}
		}
	})
	with, err := lab.ParseWith("all")
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Up(ctx, lab.Options{Dir: labtest.OwnDir(t, "ordinary"), Binary: labtest.Binary(), Devices: 3, With: with, Warm: true})
	if err != nil {
		t.Fatal(err)
	}
	devices, err := l.Devices()
	if err != nil {
		t.Fatal(err)
	}
	home, b := devices[0], devices[1]
	for _, d := range devices {
		if err := d.WaitPeered(ctx, 2); err != nil {
			t.Fatal(err)
		}
	}
	if err := mainjob.ImportImage(ctx, devices); err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, b, "rivulet", "deny", "c", "--yes")

	const ns = "ordinary"
	var objects []string
	pods := []string{"here", "at-b", "at-c"}
	for i, selector := range []string{`{"kubernetes.io/hostname":"a"}`, `{"rivulet.dev/target":"b"}`, `{"rivulet.dev/target":"c"}`} {
		objects = append(objects, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%[1]q,"namespace":%[2]q,"labels":{"app":%[1]q}},"spec":{"terminationGracePeriodSeconds":1,"nodeSelector":%[3]s,
"containers":[{"name":"web","image":%[4]q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":%[1]q,"namespace":%[2]q},"spec":{"selector":{"app":%[1]q},"ports":[{"port":80,"targetPort":8080}]}}`, pods[i], ns, selector, mainjob.Image))
	}
	labtest.Must(t, ctx, home, "rivulet", "offload", ns, "--create", "--when", "any")
	within(t, ctx, time.Minute, "the objects are made", func(ctx context.Context) error {
		_, err := home.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", `{"apiVersion":"v1","kind":"List","items":[`+strings.Join(objects, ",")+`]}`)
		return err
	})
	works := func(when string) {
		t.Helper()
		for _, from := range pods {
			for _, to := range pods {
				if to == from { // its own name leads to itself, without the Service
					continue
				}
				within(t, ctx, time.Minute, fmt.Sprintf("%s: %s reaches the Service %s", when, from, to), func(ctx context.Context) error {
					out, err := home.Kubectl(ctx, "exec", "-n", ns, from, "--", "web", "get", "http://"+to+"/")
					if err == nil && !strings.Contains(out, to) {
						err = fmt.Errorf("%s answers", out)
					}
					return err
				})
			}
		}
		for _, from := range pods {
			within(t, ctx, 30*time.Second, when+": the logs of "+from, func(ctx context.Context) error {
				out, err := home.Kubectl(ctx, "logs", "-n", ns, from)
				if err == nil && !strings.Contains(out, from+" answered /") {
					err = fmt.Errorf("%s", out)
				}
				return err
			})
		}
	}
	works("at first")
	await.NoError(t, ctx, time.Minute, "home relays between b and c", func() error {
		out, err := home.Run(ctx, "rivulet", "peers", "-o", "wide")
		if err == nil && !strings.Contains(out, "pods there reach those on c through this cluster") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	if out := labtest.Kubectl(t, ctx, home, "exec", "-n", ns, "here", "--", "busybox", "nslookup", "-type=a", "nas.lan"); !strings.Contains(out, "10.77.0.1") {
		t.Errorf("a pod asks for a name of the LAN: %s", out)
	}
	for _, d := range devices {
		r := labtest.On(t, ctx, d, "rivulet", "doctor", "--only", "lan,default-route,dns,multicast,udp,firewall,pod-network,service-rules,cidr")
		if strings.Contains(r.Out, "FAIL") || !strings.Contains(r.Out, "PASS  udp") || !strings.Contains(r.Out, "PASS  firewall") {
			t.Errorf("doctor on %s:\n%s%s", d.Name, r.Out, r.ErrOut)
		}
	}
	if err := b.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := home.WaitPeered(ctx, 2); err != nil {
		t.Fatal(err)
	}
	works("after a power cut of b")
}
