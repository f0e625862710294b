package addons

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

// Names: of the cluster and of the world, asked by a pod and by the device itself,
// with an upstream server on the LAN and without any.
func TestNames(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	labtest.Kubectl(t, ctx, b, "run", "asks", "--image="+mainjob.Image, "--port=8080", "--expose")
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.Kubectl(t, ctx, b, "delete", "pod/asks", "service/asks", "--grace-period=1")
	})
	labtest.Kubectl(t, ctx, b, "wait", "--for=condition=Ready", "pod/asks", "--timeout=60s")
	service := labtest.Kubectl(t, ctx, b, "get", "service", "asks", "-o", "jsonpath={.spec.clusterIP}")

	pod := func(name string) (string, error) { return b.Kubectl(ctx, "exec", "asks", "--", "nslookup", name) }
	host := func(name string) (string, error) {
		return b.Run(ctx, "busybox", "nslookup", name, "10.43.0.10")
	}
	resolves := func(what, name, want string, ask func(string) (string, error)) {
		t.Helper()
		await.NoError(t, ctx, 0, what, func() error {
			out, err := ask(name)
			if !strings.Contains(out, want) {
				return fmt.Errorf("%q: %v", out, err)
			}
			return nil
		})
	}
	const cluster, world, address = "asks.default.svc.cluster.local", "printer.example", "192.0.2.80"
	resolv := func(d *lab.Device, content string) {
		t.Helper()
		if _, err := d.Run(ctx, "sh", "-c", `printf "$1" > /etc/resolv.conf`, "resolv", content); err != nil {
			t.Fatal(err)
		}
	}
	defer resolv(b, "")

	resolv(b, "") // no upstream at all
	resolves("no upstream: the pod asks for a Service", cluster, service, pod)
	resolves("no upstream: the device asks for a Service", cluster, service, host)
	begun := time.Now()
	if out, _ := host(world); strings.Contains(out, address) || time.Since(begun) > 4*time.Second {
		t.Errorf("no upstream: %q after %s, want an error at once", out, time.Since(begun))
	}

	start(t, a, "dns", ":53", world, address)
	resolv(b, "nameserver "+lanAddress(t, ctx, "a")+"\n")
	resolves("with an upstream: the pod asks for the world", world, address, pod)
	resolves("with an upstream: the device asks for the world", world, address, host)
	resolves("with an upstream: the pod asks for a Service", cluster, service, pod)
}
