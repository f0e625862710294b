package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// A Service that leads to a NAS on home's LAN is refused away, at once, and both the Service and rivulet why of a pod there
// say that it is reached at home only. The cure works as printed: a pod with the label is at home, and is reached from there.
func TestWhatIsReachedAtHomeOnlyIsTold(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	a := devices["a"]
	const ns = "leftout"
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		a.Kubectl(ctx, "delete", "namespace", ns, "--wait=false", "--ignore-not-found") //nolint:errcheck // seen below
		noTwins(t, ctx)
	}()
	apply(t, ctx, a, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%[1]q,"labels":{"rivulet.dev/offload":"remote","rivulet.dev/offload-to":"b"}}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":"nas","namespace":%[1]q},"spec":{"ports":[{"name":"nfs","port":2049}]}},
{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"nas-1","namespace":%[1]q,"labels":{"kubernetes.io/service-name":"nas"}},"addressType":"IPv4","ports":[{"name":"nfs","port":2049}],"endpoints":[{"addresses":["192.168.77.20"]}]},
{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":%[1]q},"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"web","image":%[2]q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}`, ns, mainjob.Image))
	await.NoError(t, ctx, 0, "the pod is ready", func() error {
		_, err := a.Kubectl(ctx, "-n", ns, "wait", "--for=condition=Ready", "pod/p", "--timeout=20s")
		return err
	})
	await.NoError(t, ctx, 30*time.Second, "it is refused", func() error {
		out, err := a.Kubectl(ctx, "-n", ns, "exec", "p", "--", "web", "get", "http://nas:2049/")
		if err == nil || !strings.Contains(out+err.Error(), "refused") {
			return fmt.Errorf("%s %v", out, err)
		}
		return nil
	})
	await.NoError(t, ctx, 0, "an event on the Service names the address", func() error {
		out, err := a.Kubectl(ctx, "-n", ns, "get", "events", "--field-selector", "reason=ReflectionLeftOut,involvedObject.kind=Service,involvedObject.name=nas", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "192.168.77.20") {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	out, err := a.Run(ctx, "rivulet", "why", ns+"/p")
	if err != nil || !strings.Contains(out, "192.168.77.20") || !strings.Contains(out, "cure: lead the Service to a pod at home") {
		t.Errorf("rivulet why: %v\n%s", err, out)
	}
	apply(t, ctx, a, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"forwarder","namespace":%[1]q,"labels":{"app":"forwarder","rivulet.dev/offload":"off"}},"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"web","image":%[2]q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":"by-pod","namespace":%[1]q},"spec":{"selector":{"app":"forwarder"},"ports":[{"port":80,"targetPort":8080}]}}`, ns, mainjob.Image))
	await.NoError(t, ctx, 0, "the pod at home is reached from b", func() error {
		out, err := a.Kubectl(ctx, "-n", ns, "exec", "p", "--", "web", "get", "http://by-pod/")
		if err != nil {
			return fmt.Errorf("%s %v", out, err)
		}
		return nil
	})
	otherNamespace(t, ctx, ns)
	where, err := a.Kubectl(ctx, "-n", ns, "get", "pod", "forwarder", "-o", "jsonpath={.spec.nodeName}")
	if err != nil || where == "b" {
		t.Errorf("the forwarder is on %q: %v", where, err)
	}
}

// otherNamespace has a Service of a namespace that stays at home exist on b, and takes it back. Its Secrets do not get there.
func otherNamespace(t *testing.T, ctx context.Context, ns string) {
	a, b, other := devices["a"], devices["b"], ns+"-other"
	defer a.Kubectl(context.WithoutCancel(ctx), "delete", "namespace", other, "--wait=false", "--ignore-not-found") //nolint:errcheck // noTwins sees it
	apply(t, ctx, a, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%[1]q}},
{"apiVersion":"v1","kind":"Secret","metadata":{"name":"key","namespace":%[1]q,"annotations":{"rivulet.dev/reflect":"on"}}},
{"apiVersion":"v1","kind":"Pod","metadata":{"name":"db","namespace":%[1]q,"labels":{"app":"db"}},"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"web","image":%[2]q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":"db","namespace":%[1]q},"spec":{"selector":{"app":"db"},"ports":[{"port":80,"targetPort":8080}]}}`, other, mainjob.Image))
	answers := func(want bool) func() error {
		return func() error {
			out, err := a.Kubectl(ctx, "-n", ns, "exec", "p", "--", "web", "get", "http://db."+other+"/")
			if (err == nil) != want || err != nil && !strings.Contains(out+err.Error(), "lookup db."+other) {
				return fmt.Errorf("%s %v", out, err)
			}
			return nil
		}
	}
	if err := answers(false)(); err != nil {
		t.Errorf("before: %v", err)
	}
	labtest.Must(t, ctx, a, "rivulet", "offload", other, "--when", "services")
	await.NoError(t, ctx, 0, "its Service answers on b", answers(true))
	if there := labtest.Kubectl(t, ctx, b, "get", "secrets", "-A", "--field-selector", "metadata.name=key", "-o", "name"); there != "" {
		t.Errorf("on b there is %s", there)
	}
	if on := labtest.Kubectl(t, ctx, a, "-n", other, "get", "pod", "db", "-o", "jsonpath={.spec.nodeName}"); on == "b" {
		t.Error("its pod is on b")
	}
	labtest.Must(t, ctx, a, "rivulet", "unoffload", other)
	await.NoError(t, ctx, 0, "it is gone from b", answers(false))
}
