package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// Clients that wait for an answer without a deadline, at home for a pod on b by a Service and by its address, and on b for a
// pod at home, get an error when home sees b under another prefix. New connections find their way, and the
// addresses of home's API lead on from b to c, who see each other under other prefixes than home sees them.
func TestWhoWaitsForAGivenUpPrefixGetsAnError(t *testing.T) {
	ctx := need(t, 5*time.Minute)
	a := devices["a"]
	const here, there, third, config, block = "given-here", "given-there", "given-third", "/etc/rivulet/config.yaml", "248.0.0.0/5"
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		a.Kubectl(ctx, "delete", "namespace", here, there, third, "--wait=false", "--ignore-not-found") //nolint:errcheck // seen below
		if _, err := a.Run(ctx, "sh", "-c", "rm "+config+" && rivulet config reload"); err != nil {
			t.Error(err)
		}
		noTwins(t, ctx)
	}()
	namespace := func(name, when, to string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"rivulet.dev/offload":%q,"rivulet.dev/offload-to":%q}}}`, name, when, to)
	}
	pod := func(ns, name, command string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%[2]q,"namespace":%[1]q,"labels":{"app":%[2]q}},"spec":{"restartPolicy":"Never","terminationGracePeriodSeconds":1,
"containers":[{"name":"web","image":%[3]q,%[4]s"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}`, ns, name, mainjob.Image, command)
	}
	// A client that says nothing and waits; its input stays open.
	waits := func(ns, name, to, port string) string {
		return pod(ns, name, fmt.Sprintf(`"command":["/bin/busybox","sh","-c","(/bin/busybox sleep 9999 &) | /bin/busybox nc %s %s"],`, to, port))
	}
	apply(t, ctx, a, namespace(here, "off", "b"), namespace(there, "remote", "b"), namespace(third, "remote", "c"), pod(third, "server", ""), pod(here, "server", ""), pod(there, "server", ""),
		fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"server","namespace":%q},"spec":{"selector":{"app":"server"},"ports":[{"port":80,"targetPort":8080}]}}`, there))
	address := func(ns string) (ip string) {
		await.NoError(t, ctx, 0, "the server of "+ns+" is ready", func() (err error) {
			if _, err = a.Kubectl(ctx, "-n", ns, "wait", "--for=condition=Ready", "pod/server", "--timeout=20s"); err == nil {
				ip, err = a.Kubectl(ctx, "-n", ns, "get", "pod", "server", "-o", "jsonpath={.status.podIP}")
			}
			return err
		})
		return ip
	}
	service := labtest.Output(t, ctx, a, "rivulet", "kubectl", "-n", there, "get", "service", "server", "-o", "jsonpath={.spec.clusterIP}")
	before := address(there)
	address(third)
	apply(t, ctx, a, waits(here, "by-address", before, "8080"), waits(here, "by-service", service, "80"), waits(there, "from-away", address(here), "8080"))
	clients := map[string]string{"by-address": here, "by-service": here, "from-away": there}
	phase := func(name string) string {
		out, _ := a.Kubectl(ctx, "-n", clients[name], "get", "pod", name, "-o", "jsonpath={.status.phase}")
		return out
	}
	for name, ns := range clients {
		await.NoError(t, ctx, 0, name+" waits", func() error {
			_, err := a.Kubectl(ctx, "-n", ns, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=20s")
			return err
		})
	}
	if _, err := a.Run(ctx, "sh", "-c", "! test -e "+config+" && echo '{tunnel: {peerCIDR: "+block+"}}' > "+config+" && rivulet config reload"); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 0, "the pod on b has another address", func() error {
		out, err := a.Kubectl(ctx, "-n", there, "get", "pod", "server", "-o", "jsonpath={.status.podIP}")
		if err == nil && (out == before || out == "") {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	for name := range clients {
		await.NoError(t, ctx, time.Minute, name+" gets an error", func() error {
			if p := phase(name); p != "Failed" && p != "Succeeded" {
				return fmt.Errorf("it is %s", p)
			}
			return nil
		})
	}
	atC := ""
	await.NoError(t, ctx, 0, "the pod on c has another address, too", func() (err error) {
		if atC, err = a.Kubectl(ctx, "-n", third, "get", "pod", "server", "-o", "jsonpath={.status.podIP}"); err == nil && !netip.MustParsePrefix(block).Contains(netip.MustParseAddr(atC)) {
			err = fmt.Errorf("%q", atC)
		}
		return err
	})
	for from, to := range map[string]string{there: atC, third: address(there)} {
		await.NoError(t, ctx, 0, from+" reaches "+to+" at another provider", func() error {
			out, err := a.Kubectl(ctx, "-n", from, "exec", "server", "--", "web", "get", "http://"+to+":8080/")
			if err == nil && !strings.Contains(out, `"server"`) {
				err = fmt.Errorf("%s answers", out)
			}
			return err
		})
	}
	await.NoError(t, ctx, 0, "the Service is reached anew", func() error {
		_, err := a.Kubectl(ctx, "-n", here, "exec", "server", "--", "web", "get", "-n", "1", "http://"+service+"/")
		return err
	})
}
