package addons

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// ask asks from a, over the LAN.
func ask(ctx context.Context, address string, port int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://%s:%d/", address, port), nil)
	if err != nil {
		return "", err
	}
	resp, err := a.HTTP().Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(body)), err
}

// lanAddress is where the LAN knows a device.
func lanAddress(t *testing.T, ctx context.Context, name string) string {
	t.Helper()
	d, err := suite.Lab.Device(name)
	if err != nil {
		t.Fatal(err)
	}
	out, err := d.Run(ctx, "sh", "-c", "ip -4 -o addr show dev eth0 | awk '{print $4}' | cut -d/ -f1")
	if err != nil || strings.TrimSpace(out) == "" {
		t.Fatalf("%s has no address: %q %v", name, out, err)
	}
	return strings.TrimSpace(out)
}

const ingress = "jsonpath={.status.loadBalancer.ingress[*].ip}"

// A Service of b is reached from a over the LAN, whatever happens to b's address; what
// it cannot have it does not take.
func TestServiceForTheLAN(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	at := lanAddress(t, ctx, "b")
	labtest.Kubectl(t, ctx, b, "create", "deployment", "web", "--image="+mainjob.Image)
	labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, b, "delete", "deployment/web", "service/web") })
	labtest.Kubectl(t, ctx, b, "expose", "deployment", "web", "--port=80", "--target-port=8080", "--type=LoadBalancer")
	labtest.Kubectl(t, ctx, b, "wait", "--for=condition=Available", "deployment/web", "--timeout=60s")
	answers := func(what, address string) time.Duration {
		t.Helper()
		return await.NoError(t, ctx, 0, what, func() error { _, err := ask(ctx, address, 80); return err })
	}
	says(t, ctx, b, at, "get", "service", "web", "-o", ingress)
	answers("reached over the LAN", at)

	t.Run("renumbered", func(t *testing.T) {
		var err error
		if at, err = b.Renumber(ctx); err != nil {
			t.Fatal(err)
		}
		at, _, _ = strings.Cut(at, "/")
		took := says(t, ctx, b, at, "get", "service", "web", "-o", ingress) + answers("reached at the new address", at)
		if took > 10*time.Second {
			t.Errorf("reached after %s", took)
		}
	})
	t.Run("the pod sees the client's address", func(t *testing.T) {
		labtest.Kubectl(t, ctx, b, "patch", "service", "web", "-p", `{"spec":{"externalTrafficPolicy":"Local"}}`)
		want := lanAddress(t, ctx, "a")
		await.NoError(t, ctx, 0, "asked by "+want, func() error {
			body, err := ask(ctx, at, 80)
			var answer struct{ Client string }
			if err == nil {
				err = json.Unmarshal([]byte(body), &answer)
			}
			if err == nil && answer.Client != want {
				err = fmt.Errorf("asked by %s", answer.Client)
			}
			return err
		})
	})
	t.Run("source ranges", func(t *testing.T) {
		allow := func(cidr string) {
			labtest.Kubectl(t, ctx, b, "patch", "service", "web", "-p", `{"spec":{"loadBalancerSourceRanges":["`+cidr+`"]}}`)
		}
		allow("192.0.2.0/24")
		await.NoError(t, ctx, 0, "shut out", func() error {
			if _, err := ask(ctx, at, 80); err == nil {
				return errors.New("let in")
			}
			return nil
		})
		allow("10.77.0.0/24")
		answers("let in", at)
	})
	t.Run("a second Service on the port", func(t *testing.T) {
		labtest.Kubectl(t, ctx, b, "create", "service", "loadbalancer", "second", "--tcp=80:8080")
		labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, b, "delete", "service", "second") })
		event(t, ctx, b, "PortConflict", "default/web")
		says(t, ctx, b, "", "get", "service", "second", "-o", ingress)
		if out, err := b.Run(ctx, "rivulet", "status"); err != nil || !strings.Contains(out, "service-pending") {
			t.Errorf("status does not tell: %q %v", out, err)
		}
	})
	t.Run("a port of the device", func(t *testing.T) {
		stop := start(t, b, "http", ":2222", "the device itself")
		defer stop()
		asksDevice := func() error {
			body, err := ask(ctx, at, 2222)
			if err == nil && body != "the device itself" {
				err = fmt.Errorf("answered %q", body)
			}
			return err
		}
		await.NoError(t, ctx, 0, "the device answers", asksDevice)
		labtest.Kubectl(t, ctx, b, "create", "service", "loadbalancer", "ssh", "--tcp=2222:8080")
		labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, b, "delete", "service", "ssh") })
		event(t, ctx, b, "PortInUse", "2222/TCP")
		if err := asksDevice(); err != nil {
			t.Error(err)
		}
		labtest.Kubectl(t, ctx, b, "create", "service", "loadbalancer", "api", "--tcp=6443:8080")
		labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, b, "delete", "service", "api") })
		event(t, ctx, b, "PortOfDevice", "the Kubernetes API")
	})
	t.Run("no cable", func(t *testing.T) {
		if err := suite.Lab.Cut("b", ""); err != nil {
			t.Fatal(err)
		}
		event(t, ctx, b, "NoLANAddress", "plug in a cable")
		says(t, ctx, b, "", "get", "service", "web", "-o", ingress)
		if err := suite.Lab.Heal(); err != nil {
			t.Fatal(err)
		}
		answers("reached again", at)
	})
	t.Run("no Service of that type any more", func(t *testing.T) {
		labtest.Kubectl(t, ctx, b, "patch", "service", "web", "-p", `{"spec":{"type":"ClusterIP","externalTrafficPolicy":null,"loadBalancerSourceRanges":null}}`)
		says(t, ctx, b, "", "get", "service", "web", "-o", ingress)
	})
}
