package addons

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// The metrics are served to whom the setting names, with an access: with lan to the neighbour, not to a pod; with pods to
// a pod of the device's own cluster, not to the neighbour nor to a tenant's pod; by itself and with off to nobody.
func TestMetricsOverTheNetwork(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	set := func(value string) {
		t.Helper()
		labtest.Must(t, ctx, a, "sh", "-c", `mkdir -p /etc/rivulet && printf 'metrics: %s\n' "$1" > /etc/rivulet/config.yaml && rivulet config reload`, "sh", value)
	}
	lan := strings.Fields(labtest.Must(t, ctx, a, "sh", "-c", "ip -o -4 addr show dev eth0 | awk '{print $4}' | cut -d/ -f1"))[0]
	node := labtest.Status(t, ctx, a).NodeAddress
	neighbour := func(options ...string) (code, body string) {
		args := append([]string{"curl", "--silent", "--insecure", "--max-time", "10", "--noproxy", "*", "--write-out", "\n%{http_code}"}, options...)
		out := labtest.On(t, ctx, b, append(args, fmt.Sprintf("https://%s:%d/metrics", lan, api.MetricsPort))...).Out
		i := strings.LastIndex(out, "\n")
		return out[i+1:], out[:max(i, 0)]
	}
	closed := func(what string) {
		t.Helper()
		await.NoError(t, ctx, 30*time.Second, what, func() error {
			if code, _ := neighbour(); code != "000" {
				return fmt.Errorf("the neighbour gets %s", code)
			}
			return nil
		})
	}
	labtest.CleanUp(t, func(ctx context.Context) {
		_, _ = a.Run(ctx, "sh", "-c", "rm -f /etc/rivulet/config.yaml; rivulet config reload")
		_, _ = a.Kubectl(ctx, "delete", "namespace", "scraper", "--ignore-not-found")
		_, _ = b.Kubectl(ctx, "delete", "namespace", "visitor", "--ignore-not-found")
	})
	closed("by itself the port is closed")

	// Both pods run on a: one of a's own, one of b's.
	const pod = `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%[1]q,"labels":{"rivulet.dev/offload":%[2]q}}},
{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":%[1]q},"spec":{"terminationGracePeriodSeconds":1,"nodeSelector":{"kubernetes.io/hostname":"a"},
"containers":[{"name":"web","image":%[3]q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}]}`
	apply(t, ctx, a, fmt.Sprintf(pod, "scraper", "off", mainjob.Image))
	apply(t, ctx, b, fmt.Sprintf(pod, "visitor", "any", mainjob.Image))
	for _, w := range []struct {
		ns string
		on func() (string, error)
	}{{"scraper", func() (string, error) {
		return a.Kubectl(ctx, "-n", "scraper", "get", "pod", "p", "-o", "jsonpath={.status.phase}")
	}},
		{"visitor", func() (string, error) {
			return b.Kubectl(ctx, "-n", "visitor", "get", "pod", "p", "-o", "jsonpath={.status.phase}")
		}}} {
		await.NoError(t, ctx, 2*time.Minute, w.ns+" runs", func() error {
			out, err := w.on()
			if err == nil && out != "Running" {
				err = fmt.Errorf("it is %q", out)
			}
			return err
		})
	}
	// served reports whether the pod gets an answer of the server: to plain HTTP it is 400.
	served := func(own bool, at string) bool {
		args := []string{"-n", "visitor", "exec", "p", "--", "/bin/busybox", "sh", "-c", fmt.Sprintf(`printf 'GET / HTTP/1.0\r\n\r\n' | /bin/busybox timeout 5 /bin/busybox nc %s %d; true`, at, api.MetricsPort)}
		d := b
		if args[1] = "visitor"; own {
			args[1], d = "scraper", a
		}
		out, err := d.Kubectl(ctx, args...)
		if err != nil {
			t.Errorf("%v", err)
		}
		return strings.Contains(out, "400 Bad Request")
	}

	set("lan")
	await.NoError(t, ctx, 30*time.Second, "the neighbour is asked for an access", func() error {
		if code, _ := neighbour(); code != "401" {
			return fmt.Errorf("it gets %s", code)
		}
		return nil
	})
	labtest.Must(t, ctx, a, "rivulet", "metrics", "grant", "lab", "--dir", "/root/scrape")
	token := labtest.Must(t, ctx, a, "cat", "/root/scrape/rivulet-lab.token")
	if code, body := neighbour("--header", "Authorization: Bearer "+token); code != "200" || !strings.Contains(body, "\nrivulet_ready 1\n") {
		t.Errorf("with its token the neighbour gets %s", code)
	}
	if served(true, lan) || served(true, node) {
		t.Error("with lan a pod is served")
	}

	set("pods")
	closed("with pods the neighbour is not served")
	await.NoError(t, ctx, 30*time.Second, "with pods a pod of this cluster is served", func() error {
		if !served(true, node) {
			return fmt.Errorf("not at %s", node)
		}
		return nil
	})
	if served(false, node) || served(false, lan) {
		t.Error("a tenant's pod is served")
	}

	labtest.Must(t, ctx, a, "rivulet", "metrics", "revoke", "lab", "--yes")
	set("off")
	await.True(t, 30*time.Second, "with off nobody is served", func() bool { return !served(true, node) })
	closed("with off the neighbour is not served")
	if !strings.Contains(labtest.Must(t, ctx, a, "curl", "-s", "--unix-socket", "/run/rivulet/rivulet.sock", "http://rivulet/v1/history?series=peers_connected&since=1h"), `"peers_connected"`) {
		t.Error("there is no history")
	}
}
