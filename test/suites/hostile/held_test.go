package hostile

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"rivulet/test/harness/labtest"
	"rivulet/test/suites/hostile/attacker"
)

// From the LAN a stranger gets the peering exchange, and refusals.
func TestAStrangerGetsRefusals(t *testing.T) {
	ctx := suite.Bounded(t, 3*time.Minute)
	a := attacker.New(t, suite.Lab, "mallory", "10.77.0.60")
	other := attacker.New(t, suite.Lab, "other", "10.77.0.61")
	for _, path := range []string{"/", "/v1/offer", "/v1/namespaces", "/v1/namespaces/lab", "/v1/volumes/lab/data", "/v1/check", "/v1/fleet", "/v1/ping", "/k8s/api", "/k8s/version", "/metrics", "/debug/pprof/", "/v1/peering/../offer"} {
		r, err := a.Post(ctx, victimAddr, path, map[string]any{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Status != http.StatusNotFound && r.Status != http.StatusMethodNotAllowed && r.Status != http.StatusMovedPermanently && r.Status != http.StatusTemporaryRedirect {
			t.Errorf("%s outside the tunnel: %v", path, r)
		}
	}
	with := func(change func(map[string]any)) map[string]any { m := a.Message(); change(m); return m }
	for name, body := range map[string]any{
		"the ID of another":           with(func(m map[string]any) { m["id"] = other.ID }),
		"no ID":                       with(func(m map[string]any) { m["id"] = "" }),
		"a name for the terminal":     with(func(m map[string]any) { m["name"] = "a\x1b[2Jb" }),
		"a name from right to left":   with(func(m map[string]any) { m["name"] = "a\u202eb" }),
		"a name of a thousand":        with(func(m map[string]any) { m["name"] = strings.Repeat("a", 1000) }),
		"a version for the terminal":  with(func(m map[string]any) { m["version"] = "v1\n\x1b[31m" }),
		"a Kubernetes version, too":   with(func(m map[string]any) { m["kubeVersion"] = "<script>" }),
		"no protocol in common":       with(func(m map[string]any) { m["versions"] = []int{99} }),
		"no port":                     with(func(m map[string]any) { m["controlPort"] = 0 }),
		"all addresses as its pods":   with(func(m map[string]any) { m["podCIDR"] = "0.0.0.0/0" }),
		"multicast as its pods":       with(func(m map[string]any) { m["podCIDR"] = "224.0.0.0/16" }),
		"a tunnel address elsewhere":  with(func(m map[string]any) { m["tunnelAddress"] = "10.77.0.11" }),
		"a key of zeros":              with(func(m map[string]any) { m["wireguardKey"] = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=" }),
		"a key of another length":     with(func(m map[string]any) { m["wireguardKey"] = "AAAA" }),
		"a number without end":        with(func(m map[string]any) { m["sequence"] = uint64(1) << 62 }),
		"a body without end":          bytes.Repeat([]byte(" "), 1<<20),
		"a body that is nested":       []byte(strings.Repeat("[", 60000)),
		"a body that is no JSON":      []byte("{\x00"),
		"a prefix of another size":    with(func(m map[string]any) { m["seeYouAs"] = "10.99.0.0/24" }),
		"an invite that is not there": with(func(m map[string]any) { m["invite"] = make([]byte, 65) }),
	} {
		r, err := a.Post(ctx, victimAddr, "/v1/peering", body)
		if name == "a body without end" && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)) {
			continue // the answer came while it was sent, and was not read
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if r.Status < 400 || r.Status >= 500 {
			t.Errorf("%s: %v", name, r)
		} else if bytes.ContainsAny(r.Body, "\x1b\u202e") {
			t.Errorf("%s: the refusal repeats it: %q", name, r.Body)
		}
	}
	// Without a certificate, or with TLS 1.2, there are links that work once, and nothing else.
	for name, config := range map[string]*tls.Config{
		"no certificate": {InsecureSkipVerify: true},
		"TLS 1.2":        {InsecureSkipVerify: true, Certificates: a.TLS().Certificates, MaxVersion: tls.VersionTLS12},
	} {
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: config, DialContext: a.Dial}}
		if r, err := client.Post("https://"+net.JoinHostPort(victimAddr, "7442")+"/v1/peering", "application/json", strings.NewReader("{}")); err == nil && r.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", name, r.Status)
		}
	}
	for _, p := range labtest.Status(t, ctx, victim).Peers {
		if p.Name == a.Name || p.Name == other.Name {
			if p.State == "Connected" || p.State == "Connecting" {
				t.Errorf("%s is a peer: %+v", p.Name, p)
			}
		}
	}
}

// Inside the tunnel a consumer without anything gets its own, and nothing else, by
// whatever path, method or header.
func TestAConsumerGetsItsOwn(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	p := consumer(t, ctx, "mallory", "10.77.0.62")
	twin := p.Twin(ctx, "lab")
	if r, err := p.Do(ctx, "GET", "/k8s/api/v1/namespaces/"+twin+"/pods", nil, nil); err != nil || r.Status != http.StatusOK {
		t.Fatalf("the attacker's own twin: %v %v", r, err)
	}
	head := func(kv ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(kv); i += 2 {
			h[kv[i]] = append(h[kv[i]], kv[i+1])
		}
		return h
	}
	get := func(path string) [2]string { return [2]string{"GET", path} }
	for _, c := range []struct {
		what [2]string
		body any
		head http.Header
	}{
		{what: get("/k8s/api/v1/namespaces")}, {what: get("/k8s/api/v1/nodes")}, {what: get("/k8s/api/v1/pods")}, {what: get("/k8s/api/v1/secrets")},
		{what: get("/k8s/api/v1/namespaces/kube-system/secrets")}, {what: get("/k8s/api/v1/namespaces/default/pods")},
		{what: get("/k8s/api/v1/namespaces/" + twin + "/serviceaccounts")},
		{what: get("/k8s/api/v1/nodes/a/proxy/pods")}, {what: get("/k8s/api/v1/nodes/a/proxy/run/x")}, {what: get("/k8s/api/v1/nodes/https:a:10250/proxy/pods")},
		{what: get("/k8s/api/v1/namespaces/kube-system/services/kube-dns:53/proxy/")}, {what: get("/k8s/api/v1/namespaces/" + twin + "/services/x/proxy/")},
		{what: get("/k8s/apis/rbac.authorization.k8s.io/v1/clusterroles")}, {what: get("/k8s/apis/rivulet.dev/v1alpha1/peers")},
		{what: get("/k8s/metrics")}, {what: get("/k8s/logs/")}, {what: get("/k8s/debug/pprof/")}, {what: get("/k8s/configz")}, {what: get("/k8s/healthz")},
		{what: get("/k8s/../metrics")}, {what: get("/k8s/api/../metrics")}, {what: get("/k8s/api/%2e%2e/metrics")}, {what: get("/k8s/api/v1/namespaces/" + twin + "%2f..%2fkube-system/secrets")},
		{what: get("/k8s//metrics")}, {what: get("/k8s/api;/metrics")}, {what: get("/k8s/api/v1/namespaces/" + twin + "/../kube-system/secrets")},
		{what: get("/k8s/api/v1/namespaces/kube-system/secrets"), head: head("Impersonate-User", "system:admin")},
		{what: get("/k8s/api/v1/namespaces/kube-system/secrets"), head: head("Impersonate-User", "rivulet:peer:x", "Impersonate-Group", "system:masters")},
		{what: get("/k8s/api/v1/namespaces/kube-system/secrets"), head: head("impersonate-group", "system:masters")},
		{what: get("/k8s/api/v1/namespaces/kube-system/secrets"), head: head("Impersonate-Extra-Scopes", "all", "Impersonate-Uid", "1")},
		{what: get("/k8s/api/v1/namespaces/kube-system/secrets"), head: head("X-Remote-User", "system:admin", "X-Remote-Group", "system:masters")},
		{what: get("/k8s/api/v1/namespaces/kube-system/secrets"), head: head("Authorization", "Bearer x")},
		{what: get("/k8s/api/v1/namespaces/kube-system/secrets"), head: head("Connection", "Impersonate-User, X", "Impersonate-User", "system:admin")},
		{what: get("/k8s/api/v1/namespaces/kube-system/secrets"), head: head("X-Http-Method-Override", "DELETE")},
		{what: [2]string{"POST", "/k8s/api/v1/namespaces"}, body: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "mine"}}},
		{what: [2]string{"PATCH", "/k8s/api/v1/namespaces/" + twin}, body: map[string]any{"metadata": map[string]any{"labels": map[string]any{"pod-security.kubernetes.io/enforce": "privileged"}}}, head: head("Content-Type", "application/merge-patch+json")},
		{what: [2]string{"DELETE", "/k8s/api/v1/namespaces/kube-system"}},
		{what: [2]string{"DELETE", "/k8s/api/v1/namespaces/" + twin + "/resourcequotas/rivulet"}},
		{what: [2]string{"POST", "/k8s/api/v1/namespaces/" + twin + "/serviceaccounts/default/token"}, body: map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{}}},
		{what: [2]string{"POST", "/k8s/apis/rbac.authorization.k8s.io/v1/namespaces/" + twin + "/rolebindings"}, body: map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": map[string]any{"name": "x"}, "roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}}},
		{what: [2]string{"POST", "/k8s/apis/certificates.k8s.io/v1/certificatesigningrequests"}, body: map[string]any{}},
		{what: [2]string{"POST", "/k8s/api/v1/namespaces/" + twin + "/pods/x/eviction"}, body: map[string]any{}},
		// They would hold the API server for half an hour each.
		{what: [2]string{"POST", "/k8s/api/v1/namespaces/" + twin + "/pods"}, body: costly("Pod", "cpu", "1e999999999")},
		{what: [2]string{"POST", "/k8s/api/v1/namespaces/" + twin + "/pods?watch=true"}, body: costly("Pod", "cpu", "e999999999")},
		{what: [2]string{"PATCH", "/k8s/api/v1/namespaces/" + twin + "/persistentvolumeclaims/x?fieldManager=x"}, body: costly("PersistentVolumeClaim", "storage", "1e-999999999"), head: head("Content-Type", "application/apply-patch+yaml")},
		{what: [2]string{"PATCH", "/k8s/api/v1/namespaces/" + twin + "/pods/x"}, body: []any{map[string]any{"op": "copy", "from": "/metadata/annotations/x", "path": "/spec/containers/0/resources/limits/cpu"}}, head: head("Content-Type", "application/json-patch+json")},
		{what: [2]string{"PUT", "/v1/namespaces/..%2fkube-system"}}, {what: [2]string{"PUT", "/v1/namespaces/UPPER"}}, {what: [2]string{"PUT", "/v1/namespaces/" + strings.Repeat("a", 300)}},
		{what: get("/v1/volumes/lab/..%2f..%2fetc")}, {what: get("/v1/volumes/kube-system/x")},
		{what: [2]string{"CONNECT", "/k8s/api"}}, {what: [2]string{"TRACE", "/v1/ping"}},
		{what: get("/metrics")}, {what: get("/v1/status")}, {what: get("/v1/config")},
	} {
		r, err := p.Do(ctx, c.what[0], c.what[1], c.body, c.head)
		if err != nil {
			t.Errorf("%v: %v", c.what, err)
		} else if r.Status < 300 || r.Status >= 500 && c.what[0] != "CONNECT" {
			t.Errorf("%v %v: %v", c.what, c.head, r)
		}
	}
}

// costly is an object with two quantities, one of which takes an API server half an hour to compare with the other.
func costly(kind, name, quantity string) map[string]any {
	resources := map[string]any{"requests": map[string]any{name: "1"}, "limits": map[string]any{name: quantity}}
	return map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": "x"},
		"spec": map[string]any{"resources": resources, "containers": []any{map[string]any{"name": "c", "image": "x", "resources": resources}}}}
}

// Through its tunnel a peer gets to no port of the device but the control port, by no
// address of the device; and a packet with a forged source gets nowhere.
func TestThroughTheTunnelThereIsTheControlPort(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	p := consumer(t, ctx, "mallory", "10.77.0.63")
	mine := own(t, ctx, victim, "mine")
	bridge := netip.MustParseAddr(mine.Status.PodIP).As4()
	bridge[3] = 1
	var ports []string
	for _, addr := range []string{p.Tunnel.String(), netip.AddrFrom4(bridge).String(), "10.77.0.11", "127.0.0.1", "10.43.0.1", mine.Status.HostIP} {
		for _, port := range []int{22, 53, 80, 443, 1443, 6443, 6444, 10248, 10249, 10250, 10256, 10257, 10259, 2379} {
			ports = append(ports, net.JoinHostPort(addr, fmt.Sprint(port)))
		}
	}
	for _, port := range p.Reached(ctx, ports...) {
		t.Errorf("%s is reached through the tunnel", port)
	}
	honestly := labtest.Status(t, ctx, victim)
	var prefix netip.Prefix
	for _, q := range honestly.Peers {
		if q.Name == "b" {
			prefix = q.PeerMappedCIDR
		}
	}
	if !prefix.IsValid() {
		t.Fatal("the prefix of b is not known")
	}
	for _, from := range p.ReachedFrom(ctx, netip.MustParseAddrPort(p.Control()),
		prefix.Addr().Next(), netip.MustParseAddr("10.42.0.77"), netip.MustParseAddr("10.77.0.12"), netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("%s, which is not the attacker's, is answered", from)
	}
}
