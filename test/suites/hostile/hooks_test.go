package hostile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/webhooks"
)

// An administrator of a virtual cluster points webhooks and an API service, by hand-made endpoints and by URL, at what is not
// its own. The device refuses, and sends nothing there: who would be there has the right certificate and says yes.
func TestATenantsHooksReachItsOwnPodsAlone(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	tls, err := webhooks.NewTLS()
	if err != nil {
		t.Fatal(err)
	}
	other, v := newTenant(t, ctx, "victor"), newTenant(t, ctx, "mallory")
	other.apply(tls.Server()...)
	v.apply(append(append(tls.Server(), webhooks.Service(false)), tls.Calls("")...)...)
	address := func(of tenant) (ip string) {
		await.NoError(t, ctx, time.Minute, "the server of "+of.name+" is ready", func() error {
			out := of.kubectl("get", "pods", "-l", "app="+webhooks.Name, "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status} {.items[*].status.podIP}`).Out
			var ready string
			if _, err := fmt.Sscan(out, &ready, &ip); err != nil || ready != "True" {
				return fmt.Errorf("%q", out)
			}
			return nil
		})
		return ip
	}
	its, theirs := address(v), address(other)
	mine := own(t, ctx, victim, "mine")
	node := labtest.Kubectl(t, ctx, victim, "get", "nodes", "a", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	api := labtest.Kubectl(t, ctx, victim, "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")

	send := func(verb string, objects ...any) labtest.Result {
		raw, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
		if err != nil {
			t.Fatal(err)
		}
		return labtest.On(t, ctx, victim, "sh", "-c", `printf %s "$1" | rivulet kubectl --kubeconfig `+v.kubeconfig()+` `+verb+` -f - -o json`, "send", string(raw))
	}
	// point makes the endpoint by hand.
	point := func(ip string, port int) {
		t.Helper()
		family := "IPv4"
		if strings.Contains(ip, ":") {
			family = "IPv6"
		}
		v.kubectl("delete", "endpointslice", "hand", "--ignore-not-found")
		if r := send("create", map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": map[string]any{"name": "hand", "labels": map[string]any{"kubernetes.io/service-name": webhooks.Name}},
			"addressType": family, "ports": []any{map[string]any{"name": "https", "port": port}}, "endpoints": []any{map[string]any{"addresses": []string{ip}}}}); r.Code != 0 {
			t.Fatalf("%s: %s", ip, r.ErrOut)
		}
	}
	good := func() labtest.Result { return send("create --dry-run=server", webhooks.ConfigMap("good")) }
	// refused waits until the device has refused that address, not one before it.
	refused := func(at string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, at+" is refused", func() error {
			r := good()
			if r.Code == 0 {
				return fmt.Errorf("a webhook answers: %s", r.Out)
			}
			if !strings.Contains(r.ErrOut, fmt.Sprintf("%q is no running pod of virtual cluster mallory", at)) {
				return fmt.Errorf("%s", r.ErrOut)
			}
			return nil
		})
	}
	point(its, webhooks.Port)
	await.NoError(t, ctx, time.Minute, "its own pod is called", func() error {
		if r := good(); r.Code != 0 || !strings.Contains(r.Out, "was here") {
			return fmt.Errorf("%s%s", r.Out, r.ErrOut)
		}
		if r := v.kubectl("get", "--raw", "/apis/web.example/v1/who"); r.Code != 0 {
			return fmt.Errorf("%s", r.ErrOut)
		}
		return nil
	})
	// With its pod gone the address is nobody's, and no connection is left.
	v.kubectl("scale", "deployment", webhooks.Name, "--replicas=0")
	refused(fmt.Sprintf("%s:%d", its, webhooks.Port))
	for _, to := range []struct {
		ip   string
		port int
	}{
		{theirs, webhooks.Port}, {mine.Status.PodIP, 8080}, {node, 6443}, {node, 10250}, {node, 7442}, {node, 17000}, {victimAddr, 7442}, {honestAddr, 7442}, {api, 443},
		{"10.42.0.1", 10250}, {"10.43.0.10", 53}, {"fd00::1", 6443}, {"203.0.113.9", 443},
	} {
		point(to.ip, to.port)
		at := fmt.Sprintf("%s:%d", to.ip, to.port)
		if strings.Contains(to.ip, ":") {
			at = fmt.Sprintf("[%s]:%d", to.ip, to.port)
		}
		refused(at)
		if r := v.kubectl("get", "--raw", "/apis/web.example/v1/who", "--request-timeout", "5s"); r.Code == 0 {
			t.Errorf("an API service at %s answers %q", at, r.Out)
		}
	}
	for _, at := range []string{"127.0.0.1:6443", "127.0.0.1:10250", "[::1]:6443", "localhost:7442", "169.254.169.254:443", theirs + ":8443", node + ":6443", "kubernetes.default.svc:443"} {
		if r := send("replace", tls.Calls("https://" + at + "/validate")[:2]...); r.Code != 0 {
			t.Fatalf("%s: %s", at, r.ErrOut)
		}
		refused(at)
	}
}
