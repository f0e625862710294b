package vcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/webhooks"
)

// TestHooksAreCalledInItsPods: webhooks and an API service that a pod of a virtual cluster serves are called there, by those that use
// it, after the pod was replaced, after a restart of the supervisor, and by the request that wakes it.
func TestHooksAreCalledInItsPods(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a := suite.Devices["a"]
	labtest.CleanUp(t, func(ctx context.Context) { labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", "ann", "--yes") })
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "create", "ann", "--sleep", "15s")
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "connect", "ann", "--kubeconfig", "/tmp/ann.yaml")
	kubectl := func(args ...string) (string, error) {
		return a.Run(ctx, append([]string{"rivulet", "kubectl", "--kubeconfig", "/tmp/ann.yaml"}, args...)...)
	}
	send := func(verb string, objects ...any) (string, error) {
		raw, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
		if err != nil {
			t.Fatal(err)
		}
		return a.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl --kubeconfig /tmp/ann.yaml `+verb+` -f - -o json`, "send", string(raw))
	}
	tls, err := webhooks.NewTLS()
	if err != nil {
		t.Fatal(err)
	}
	// Its node is let in, whatever its NetworkPolicies say of other pods.
	alone := map[string]any{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": map[string]any{"name": "alone"}, "spec": map[string]any{"podSelector": map[string]any{}, "policyTypes": []string{"Ingress"}}}
	if _, err := send("apply", append(append(tls.Server(), webhooks.Service(true), alone), tls.Calls("")...)...); err != nil {
		t.Fatal(err)
	}
	called := func() error {
		good, err := send("create --dry-run=server", webhooks.ConfigMap("good"))
		if err != nil {
			return err
		}
		if !strings.Contains(good, "was here") {
			return fmt.Errorf("not changed: %s", good)
		}
		if out, err := send("create", webhooks.ConfigMap("bad")); err == nil || !strings.Contains(err.Error(), "no bad ones") {
			return fmt.Errorf("a bad one: %s %w", out, err)
		}
		if who, err := kubectl("get", "--raw", "/apis/web.example/v1/who"); err != nil || who == "" {
			return fmt.Errorf("the API answers %q %w", who, err)
		}
		if all, err := kubectl("api-resources", "--api-group", "web.example", "-o", "name"); err != nil || !strings.Contains(all, "visits.web.example") {
			return fmt.Errorf("discovery has %q %w", all, err)
		}
		if proxied, err := kubectl("get", "--raw", "/api/v1/namespaces/default/services/https:"+webhooks.Name+":https/proxy/apis/web.example/v1"); err != nil || !strings.Contains(proxied, "visits") {
			return fmt.Errorf("through the proxy of its Service comes %q %w", proxied, err)
		}
		return nil
	}
	await.NoError(t, ctx, 2*time.Minute, "all are called", called)
	if _, err := kubectl("delete", "pod", "-l", "app="+webhooks.Name, "--wait=false"); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, time.Minute, "another pod is there", func() error {
		out, err := kubectl("get", "pods", "-l", "app="+webhooks.Name, "-o", "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}")
		if err == nil && out != "True" {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	await.NoError(t, ctx, time.Minute, "all are called at another pod", called)
	if err := a.Kill(ctx, "supervisor"); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 2*time.Minute, "all are called by way of the next supervisor", called)
	await.NoError(t, ctx, 2*time.Minute, "it falls asleep", func() error {
		var v view
		out, err := a.Run(ctx, "rivulet", "vcluster", "describe", "ann", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &v)
		}
		if err == nil && v.State != "Asleep" {
			err = fmt.Errorf("%s", v.State)
		}
		return err
	})
	if good, err := send("create", webhooks.ConfigMap("good")); err != nil || !strings.Contains(good, "was here") {
		t.Errorf("the request that wakes it: %s %v", good, err)
	}
}
