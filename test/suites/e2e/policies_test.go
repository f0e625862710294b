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

// db runs away on b and is closed but for web, which runs at home: the other pod of home
// and the one beside db on b, whose packets no one at home sees, do not get through. It
// stays so when web has another address.
func TestPoliciesHoldPodsAway(t *testing.T) {
	ctx := need(t, 4*time.Minute)
	const front, shop = "front", "shop"
	a, b := devices["a"], devices["b"]
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		a.Kubectl(ctx, "delete", "namespace", front, shop, "--wait=false", "--ignore-not-found") //nolint:errcheck // seen below
		await.NoError(t, ctx, 0, "no twin and no policy is left on b", func() error {
			out, err := b.Kubectl(ctx, "get", "namespaces", "-l", "rivulet.dev/origin", "-o", "name")
			if err == nil && out != "" {
				err = fmt.Errorf("%s", out)
			}
			if err == nil {
				out, err = b.Kubectl(ctx, "get", "networkpolicies", "-A", "-o", "name")
			}
			if err == nil && out != "" {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
	}()
	namespace := func(name, when string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"rivulet.dev/offload":%q,"rivulet.dev/offload-to":"b"}}}`, name, when)
	}
	pod := func(ns, name string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q,"labels":{"app":%q}},"spec":{"terminationGracePeriodSeconds":1,
"containers":[{"name":"web","image":%q,"ports":[{"name":"http","containerPort":8080}],"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}`, name, ns, name, mainjob.Image)
	}
	apply(t, ctx, a, namespace(front, "off"), namespace(shop, "remote"), pod(front, "web"), pod(front, "job"), pod(shop, "db"), pod(shop, "beside"),
		fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"db","namespace":%q},"spec":{"selector":{"app":"db"},"ports":[{"port":80,"targetPort":"http"}]}}`, shop))
	fetch := func(ns, from string) error {
		_, err := a.Kubectl(ctx, "-n", ns, "exec", from, "--", "web", "get", "-n", "1", "http://db."+shop+".svc.cluster.local/")
		return err
	}
	silent := func(ns, from string) {
		t.Helper()
		if err := fetch(ns, from); err == nil || !strings.Contains(err.Error(), "Timeout exceeded") && !strings.Contains(err.Error(), "deadline exceeded") {
			t.Errorf("%s reaches db: %v, want silence", from, err)
		}
	}
	for ns, pods := range map[string][]string{front: {"web", "job"}, shop: {"beside"}} {
		for _, name := range pods {
			await.NoError(t, ctx, 0, name+" reaches db as long as there is no policy", func() error { return fetch(ns, name) })
		}
	}
	apply(t, ctx, a, fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"deny","namespace":%q},"spec":{"podSelector":{},"policyTypes":["Ingress"]}}`, shop),
		fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"db","namespace":%q},"spec":{"podSelector":{"matchLabels":{"app":"db"}},
"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":%q}},"podSelector":{"matchLabels":{"app":"web"}}}],"ports":[{"port":"http"}]}]}}`, shop, front))
	await.NoError(t, ctx, 0, "b holds db to both policies", func() error {
		out, err := b.Kubectl(ctx, "-n", labtest.Twin(t, ctx, b, shop), "get", "networkpolicies", "-o", "name")
		if err == nil && len(strings.Fields(out)) != 2 {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	await.NoError(t, ctx, 0, "who runs beside db is shut out", func() error {
		if fetch(shop, "beside") == nil {
			return fmt.Errorf("it still reaches db")
		}
		return nil
	})
	silent(front, "job")
	await.NoError(t, ctx, 0, "web reaches db", func() error { return fetch(front, "web") })

	address := func() string {
		out, _ := a.Kubectl(ctx, "-n", front, "get", "pod", "web", "-o", "jsonpath={.status.podIP}")
		return out
	}
	before := address()
	if _, err := a.Kubectl(ctx, "-n", front, "delete", "pod", "web", "--now"); err != nil {
		t.Fatal(err)
	}
	apply(t, ctx, a, pod(front, "web"))
	await.NoError(t, ctx, 0, "another web reaches db", func() error {
		if now := address(); now == "" || now == before {
			return fmt.Errorf("web has %q, had %q", now, before)
		}
		return fetch(front, "web")
	})
	for _, d := range []*lab.Device{a, b} {
		if out, err := d.Run(ctx, "rivulet", "status", "-o", "json"); err != nil || strings.Contains(out, `"network-policy"`) {
			t.Errorf("%s: %v: a problem with policies: %s", d.Name, err, out)
		}
	}
}
