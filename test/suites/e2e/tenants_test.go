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

// Two consumers, a and c, run pods on b, which runs one of its own. Each pod reaches
// what is its consumer's, by address and by name, and nothing else; packets say so.
func TestTenantsAreApart(t *testing.T) {
	ctx := need(t, 5*time.Minute)
	const ns = "tenants"
	a, b, c := devices["a"], devices["b"], devices["c"]
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		for _, d := range []*lab.Device{a, b, c} {
			d.Kubectl(ctx, "delete", "namespace", ns, "--wait=false", "--ignore-not-found") //nolint:errcheck // seen below
		}
		// As long as a consumer has a twin the other's part is smaller.
		noTwins(t, ctx)
	}()
	pod := func(d *lab.Device, name string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q,"labels":{"app":%q}},"spec":{"terminationGracePeriodSeconds":1,
"containers":[{"name":"web","image":%q,"ports":[{"name":"http","containerPort":8080}],"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}`, name, ns, name, mainjob.Image)
	}
	make := func(d *lab.Device, when string, pods ...string) {
		t.Helper()
		items := []string{fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"rivulet.dev/offload":%q,"rivulet.dev/offload-to":"b"}}}`, ns, when)}
		for _, name := range pods {
			items = append(items, pod(d, name), fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q,"namespace":%q},"spec":{"selector":{"app":%q},"ports":[{"port":80,"targetPort":8080}]}}`, name, ns, name))
		}
		apply(t, ctx, d, items...)
	}
	make(a, "remote", "one", "two")
	make(c, "remote", "other")
	make(b, "off", "own")
	ip := func(d *lab.Device, name string) (addr string) {
		t.Helper()
		await.NoError(t, ctx, 0, name+" runs", func() error {
			out, err := d.Kubectl(ctx, "-n", ns, "get", "pod", name, "-o", "jsonpath={.status.phase} {.status.podIP}")
			phase, at, _ := strings.Cut(out, " ")
			if err == nil && (phase != "Running" || at == "") {
				err = fmt.Errorf("%s: %s", name, out)
			}
			addr = at
			return err
		})
		return addr
	}
	// Addresses as b sees them: tenants of a and of c are pods of b.
	onB := func(d *lab.Device, name string) string {
		t.Helper()
		ip(d, name)
		twin, err := b.Kubectl(ctx, "get", "namespaces", "-l", "rivulet.dev/origin", "-o", `jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}`)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range strings.Fields(twin) {
			if !strings.HasPrefix(n, ns+"-"+d.Name+"-") {
				continue
			}
			out, err := b.Kubectl(ctx, "-n", n, "get", "pods", "-l", "app="+name, "-o", "jsonpath={.items[0].status.podIP}")
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		t.Fatalf("no twin of %s on b: %s", d.Name, twin)
		return ""
	}
	one, two, other, own := onB(a, "one"), onB(a, "two"), onB(c, "other"), ip(b, "own")
	// Tenants are told, and use, addresses as their home sees them.
	seen := func(d *lab.Device, at string) string {
		t.Helper()
		for _, p := range labtest.Status(t, ctx, d).Peers {
			if p.Name == "b" {
				prefix, parts := p.PeerMappedCIDR.Addr().As4(), strings.Split(at, ".")
				return fmt.Sprintf("%d.%d.%s.%s", prefix[0], prefix[1], parts[2], parts[3])
			}
		}
		t.Fatalf("%s has no peer b", d.Name)
		return ""
	}
	node, err := b.Kubectl(ctx, "get", "node", "b", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	if err != nil {
		t.Fatal(err)
	}
	// Where pods of b find b: whichever part of the pod addresses the node was given.
	bridge := own[:strings.LastIndex(own, ".")] + ".1"
	fetch := func(d *lab.Device, from, url string) error {
		_, err := d.Kubectl(ctx, "-n", ns, "exec", from, "--", "web", "get", "-n", "1", url)
		return err
	}
	for _, x := range []struct {
		d        *lab.Device
		from, to string
	}{
		{a, "one", "http://" + seen(a, two) + ":8080/"}, {a, "two", "http://" + seen(a, one) + ":8080/"},
		{a, "one", "http://two/"}, {a, "one", "http://two." + ns + ".svc.cluster.local/"}, // cluster DNS and Services
		{b, "own", "http://own." + ns + ".svc.cluster.local/"}, // (own alone is the pod's own host name)
	} {
		await.NoError(t, ctx, 0, x.from+" reaches "+x.to, func() error { return fetch(x.d, x.from, x.to) })
	}
	for _, x := range []struct {
		d              *lab.Device
		from, to, what string
	}{
		{a, "one", "http://" + seen(a, other) + ":8080/", "another consumer's tenant"},
		{c, "other", "http://" + seen(c, one) + ":8080/", "another consumer's tenant"},
		{a, "one", "http://" + seen(a, own) + ":8080/", "the provider's own pod"},
		{b, "own", "http://" + one + ":8080/", "a tenant"},
		{a, "one", "https://" + node + ":6443/", "the provider's API server"},
		{a, "one", "https://" + seen(a, bridge) + ":10250/", "the provider's kubelet"},
		{a, "one", "http://10.77.0.12:7442/", "the provider by its LAN address"},
	} {
		err := fetch(x.d, x.from, x.to)
		if err == nil || !strings.Contains(err.Error(), "Timeout exceeded") && !strings.Contains(err.Error(), "deadline exceeded") {
			t.Errorf("%s reaches %s: %v, want silence", x.from, x.what, err)
		}
	}
}
