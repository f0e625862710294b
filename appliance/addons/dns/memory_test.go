package dns

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/kubernetes/object"
	miekg "github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/locks"
)

// A server that was started again, without an API server in sight, answers what
// was known before: Services, headless ones, twins, and what does not exist.
func TestARestartAnswersAsLastKnown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run", "dns.json")
	client := netip.MustParseAddr("127.0.0.1")
	m := memory{
		Services: []*object.Service{
			{Name: "web", Namespace: "lab", Index: "web.lab", Type: corev1.ServiceTypeClusterIP, ClusterIPs: []string{"10.43.1.2"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: "TCP"}}},
			{Name: "db", Namespace: "lab", Index: "db.lab", Type: corev1.ServiceTypeClusterIP, ClusterIPs: []string{"None"}, Ports: []corev1.ServicePort{{Port: -1}}},
			{Name: "web", Namespace: "home-x7f2", Index: "web.home-x7f2", Type: corev1.ServiceTypeClusterIP, ClusterIPs: []string{"10.43.7.7"}, Ports: []corev1.ServicePort{{Port: 80}}},
		},
		Endpoints: []*object.Endpoints{{Name: "db-1", Namespace: "lab", Index: "db.lab", IndexIP: []string{"10.42.0.9"},
			Subsets: []object.EndpointSubset{{Addresses: []object.EndpointAddress{{IP: "10.42.0.9", Hostname: "db-0"}}, Ports: []object.EndpointPort{{Port: 5432}}}}}},
		Imports: []*object.ServiceImport{
			{Name: "web", Namespace: "lab", Index: "web.lab", Type: mcs.ClusterSetIP, ClusterIPs: []string{"10.43.1.9"}, Ports: []mcs.ServicePort{{Port: 80}}},
			{Name: "db", Namespace: "lab", Index: "db.lab", Type: mcs.Headless}},
		Remote: []*object.MultiClusterEndpoints{{ClusterId: "b", Endpoints: object.Endpoints{Name: "db-2", Namespace: "lab", Index: "db.lab",
			Subsets: []object.EndpointSubset{{Addresses: []object.EndpointAddress{{IP: "10.65.0.3", Hostname: "db-0"}}, Ports: []object.EndpointPort{{Port: 5432}}}}}}},
		Namespaces: map[string]bool{"lab": true, "home-x7f2": true},
		Twins:      map[string][2]string{"home-x7f2": {"other", "home"}},
	}
	for namespace, queries := range map[string]map[string]string{
		"lab": {
			"web.lab.svc.cluster.local.":          "10.43.1.2",
			"db.lab.svc.cluster.local.":           "10.42.0.9",
			"db-0.db.lab.svc.cluster.local.":      "10.42.0.9",
			"gone.lab.svc.cluster.local.":         "NXDOMAIN",
			"web.nowhere.svc.cluster.local.":      "NXDOMAIN",
			"web.lab.svc.clusterset.local.":       "10.43.1.9",
			"db.lab.svc.clusterset.local.":        "10.65.0.3",
			"db-0.b.db.lab.svc.clusterset.local.": "10.65.0.3",
			"db-0.c.db.lab.svc.clusterset.local.": "NXDOMAIN",
			"gone.lab.svc.clusterset.local.":      "NXDOMAIN",
		},
		"home-x7f2": {
			"web.home.svc.cluster.local.":    "10.43.7.7", // a tenant's name for what is in its twin
			"web.lab.svc.cluster.local.":     "NXDOMAIN",
			"web.lab.svc.clusterset.local.":  "NXDOMAIN", // the owner's
			"web.home.svc.clusterset.local.": "NXDOMAIN",
		},
	} {
		m.Pods = map[netip.Addr][2]string{client: {namespace, "p"}}
		if err := m.save(file); err != nil {
			t.Fatal(err)
		}
		ask := serveAlone(t, file)
		for name, want := range queries {
			if got := ask(name); got != want {
				t.Errorf("from %s, %s: %s, want %s", namespace, name, got, want)
			}
		}
	}
}

func TestWithoutASoundMemoryItWaitsForTheAPIServer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dns.json")
	for _, content := range []string{"", "{", `{"Services":[{"Name":1}]}`} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := serveAlone(t, file)("web.lab.svc.cluster.local."); got != "SERVFAIL" {
			t.Errorf("with a memory of %q: %s", content, got)
		}
	}
}

// serveAlone runs a server without an API server, and returns how to ask it.
func serveAlone(t *testing.T, file string) func(name string) string {
	t.Helper()
	addr := netip.MustParseAddrPort(locks.Address(t))
	s := New(Config{Addr: addr, Kubeconfig: filepath.Join(t.TempDir(), "none"), ServiceIP: netip.MustParseAddr("10.43.0.10"), ResolvConf: []string{}, Memory: file})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func() { t.Error("ready without an API server") }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	await.True(t, 10*time.Second, "its socket is bound", s.bound.Load)
	return func(name string) string {
		r, err := miekg.Exchange(new(miekg.Msg).SetQuestion(name, miekg.TypeA), addr.String())
		if err != nil {
			return err.Error()
		}
		for _, rr := range r.Answer {
			if a, ok := rr.(*miekg.A); ok {
				return a.A.String()
			}
		}
		return miekg.RcodeToString[r.Rcode]
	}
}

// An API server that refuses the definition of imports, as one whose webhook is gone, costs no other name: nothing of
// clusterset.local is answered, least of all by this cluster's own Services.
func TestWithoutImports(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "failed calling webhook", http.StatusInternalServerError)
	}))
	defer api.Close()
	s := New(Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), ServiceIP: netip.MustParseAddr("10.43.0.10"), ResolvConf: []string{}, Memory: filepath.Join(t.TempDir(), "dns.json")})
	s.cluster.limit = 300 * time.Millisecond
	stop, err := s.cluster.start(t.Context(), &rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer stop() //nolint:errcheck // the test ends
	if m := s.snapshot(); len(m.Imports) > 0 {
		t.Errorf("imports %v", m.Imports)
	}
	if r := ask(t, s.cluster, "127.0.0.1", "web.lab.svc.clusterset.local.", miekg.TypeA); r.Rcode != miekg.RcodeServerFailure {
		t.Errorf("%v", r)
	}
}
