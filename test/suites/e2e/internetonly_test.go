package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/mainjob"
)

// Policies that let pods out to the Internet only, or let in who is not in the pod CIDR, hold at home and away
// against pods of other namespaces on a peer, whose addresses no list of private networks names.
func TestInternetOnlyReachesNoPodsOnPeers(t *testing.T) {
	ctx := need(t, 4*time.Minute)
	a := devices["a"]
	const here, one, two = "net-here", "net-one", "net-two"
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		a.Kubectl(ctx, "delete", "namespace", here, one, two, "--wait=false", "--ignore-not-found") //nolint:errcheck // seen below
		noTwins(t, ctx)
	}()
	namespace := func(name, when string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"rivulet.dev/offload":%q,"rivulet.dev/offload-to":"b"}}}`, name, when)
	}
	pod := func(ns string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":%q},"spec":{"terminationGracePeriodSeconds":1,
"containers":[{"name":"web","image":%q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}`, ns, mainjob.Image)
	}
	apply(t, ctx, a, namespace(here, "off"), namespace(one, "remote"), namespace(two, "remote"), pod(here), pod(one), pod(two))
	at := map[string]string{}
	for _, ns := range []string{here, one, two} {
		await.NoError(t, ctx, 0, "the pod of "+ns+" is ready", func() (err error) {
			if _, err = a.Kubectl(ctx, "-n", ns, "wait", "--for=condition=Ready", "pod/p", "--timeout=20s"); err == nil {
				at[ns], err = a.Kubectl(ctx, "-n", ns, "get", "pod", "p", "-o", "jsonpath={.status.podIP}")
			}
			return err
		})
	}
	fetch := func(from, to string) error {
		_, err := a.Kubectl(ctx, "-n", from, "exec", "p", "--", "web", "get", "-n", "1", "http://"+at[to]+":8080/")
		return err
	}
	held := func(direction, rule, except string, pairs [][2]string) {
		t.Helper()
		for _, p := range pairs {
			await.NoError(t, ctx, 0, p[0]+" reaches "+p[1]+" as long as there is no policy", func() error { return fetch(p[0], p[1]) })
		}
		for _, ns := range []string{here, one} {
			apply(t, ctx, a, fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"n","namespace":%q},"spec":{"podSelector":{},"policyTypes":[%q],%s":[{"ipBlock":{"cidr":"0.0.0.0/0","except":[%s]}}]}]}}`,
				ns, direction, rule, except))
		}
		for _, p := range pairs {
			await.NoError(t, ctx, 30*time.Second, p[0]+" does not reach "+p[1], func() error {
				if fetch(p[0], p[1]) == nil {
					return fmt.Errorf("it does")
				}
				return nil
			})
		}
		if _, err := a.Kubectl(ctx, "delete", "networkpolicies", "-A", "--all"); err != nil {
			t.Fatal(err)
		}
	}
	held("Egress", `"egress":[{"to`, `"10.0.0.0/8","172.16.0.0/12","192.168.0.0/16"`, [][2]string{{here, two}, {one, two}})
	held("Ingress", `"ingress":[{"from`, `"10.42.0.0/16"`, [][2]string{{two, here}, {two, one}})
}
