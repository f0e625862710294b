package vcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
	"rivulet/offload/provider"
	"rivulet/offload/provider/tenancy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// neighbour is a fabric with one peer.
type neighbour struct {
	link   peer.Link
	server *httptest.Server
	// unlinked is why the peer has no tunnel, empty if it has one; none that there is no record of it, and departed that
	// its peering has ended.
	unlinked       string
	none, departed bool
	also           []peer.Link // further peers
}

func (n neighbour) Links() []peer.Link { return []peer.Link{n.link} }
func (n neighbour) Peerings() ([]peer.Link, []peer.Unlinked) {
	if n.unlinked != "" {
		return n.also, []peer.Unlinked{{Link: peer.Link{ID: n.link.ID, Name: n.link.Name}, Why: n.unlinked}}
	}
	if n.none || n.departed {
		return nil, nil
	}
	return append(n.Links(), n.also...), nil
}
func (n neighbour) Departed() []peer.ID {
	if n.departed {
		return []peer.ID{n.link.ID}
	}
	return nil
}
func (neighbour) Changed() (<-chan struct{}, func()) { return make(chan struct{}), func() {} }
func (n neighbour) Link(id peer.ID) (peer.Link, bool) {
	return n.link, id == n.link.ID && n.unlinked == ""
}
func (n neighbour) Client(peer.ID) (*http.Client, string, error) {
	return n.server.Client(), n.server.URL, nil
}
func (neighbour) TLS(peer.ID) (cert, key, server []byte, name string, err error) {
	return nil, nil, nil, "", errors.New("no sessions here")
}
func (neighbour) Dial(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("no sessions here")
}

// TestOnlyItsTargetsRoutes: a virtual cluster sends requests to its targets only, there only to the routes of consumers,
// and always as itself, never as its host.
func TestOnlyItsTargetsRoutes(t *testing.T) {
	var got []string
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got = append(got, r.URL.Path) }))
	defer b.Close()
	host, far := peer.Hosted("x", "host"), peer.Hosted("x", "b")
	k := New(Config{ID: host, Log: slog.New(slog.DiscardHandler)})
	f := neighbour{link: peer.Link{ID: far, Name: "b", PeerCIDR: netip.MustParsePrefix("10.42.0.0/16"), PeerMappedCIDR: netip.MustParsePrefix("240.3.0.0/16")}, server: b}
	k.targets.fabric = f
	id, seed := newID(k.cfg.ID)
	c := newCluster(k, record{Spec: Spec{Name: "ann", Targets: []string{"b"}}, ID: id, Seed: seed})
	send := func(path string) int {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "http://host"+controlplane.AtPath+path, nil)
		toTarget(c, w, r)
		return w.Code
	}
	at := string(far)
	for path, ok := range map[string]bool{
		"/v1/namespaces": true, "/v1/namespaces/lab": true, "/k8s/api/v1/pods": true, "/v1/offer": true,
		"/v1/peering/end": false, "/v1/hosted": false, "/v1/elsewhere": false, "/v1/offers": false, "/": false,
		"/v1/namespaces/../peering/end": false, "/k8s/../v1/peering/end": false, "//v1/peering/end": false, "/k8s/%2e%2e/v1/x": false,
	} {
		got = nil
		code := send(at + path)
		if (code == http.StatusOK) != ok || len(got) > 0 != ok || ok && got[0] != "/v1/hosted/"+seed+path {
			t.Errorf("%s: %d %q", path, code, got)
		}
	}
	got = nil
	for what, change := range map[string]func(r *record){
		"no target":                   func(r *record) { r.Targets = nil },
		"another one":                 func(r *record) { r.Targets = []string{"c"} },
		"being deleted":               func(r *record) { r.Deleting = true },
		"an identity of another host": func(r *record) { r.Seed = "other" },
	} {
		was := c.rec
		change(&c.rec)
		if code := send(at + "/v1/offer"); code != http.StatusForbidden || len(got) > 0 || len(further(c, f, nil).Links) > 0 {
			t.Errorf("%s: %d %q", what, code, got)
		}
		c.rec = was
	}
	if code := send(string(peer.Hosted("x", "c")) + "/v1/offer"); code != http.StatusForbidden {
		t.Errorf("a cluster that is no peer: %d", code)
	}
	if all := further(c, f, nil).Links; len(all) != 1 || all[0].ID != far {
		t.Errorf("%v", all)
	}
	// A peer without a tunnel stays one of its targets: what it has there may still run.
	f.unlinked = "its key is another peer's"
	if all := further(c, f, nil); len(all.Links) > 0 || len(all.Unlinked) != 1 || all.Unlinked[0].ID != far || all.Unlinked[0].Why != f.unlinked {
		t.Errorf("%+v", all)
	}
}

func TestCheckTargets(t *testing.T) {
	for _, bad := range [][]string{{"all", "b"}, {""}, make([]string, maxTargets+1)} {
		if checkTargets(bad) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if err := checkTargets([]string{"b", "c"}); err != nil {
		t.Error(err)
	}
}

// TestATargetEndsByAnEnd: the host says that a target has ended if its peering was ended or its owner does not allow it any
// more, and only of those that the virtual cluster knows. A record that is merely missing is no end.
func TestATargetEndsByAnEnd(t *testing.T) {
	host, far := peer.Hosted("x", "host"), peer.Hosted("x", "b")
	k := New(Config{ID: host, Log: slog.New(slog.DiscardHandler)})
	id, seed := newID(k.cfg.ID)
	other := []peer.Link{{ID: peer.Hosted("x", "c"), Name: "c"}}
	for _, tc := range []struct {
		what    string
		fabric  neighbour
		targets []string
		listed  bool
		ended   bool
	}{
		{"a target", neighbour{}, []string{"b"}, true, false},
		{"without a tunnel", neighbour{unlinked: "its key is another peer's"}, []string{"b"}, true, false},
		{"a record that is missing", neighbour{none: true}, []string{"b"}, false, false},
		{"a peering that was ended", neighbour{departed: true}, []string{"b"}, false, true},
		{"taken back", neighbour{also: other}, []string{"c"}, true, true},
		{"taken back without a tunnel", neighbour{unlinked: "its key is another peer's", also: other}, []string{"c"}, true, true},
		{"renamed", neighbour{also: other}, []string{"former"}, false, false},
		{"two have its name", neighbour{also: append(other, peer.Link{ID: "d", Name: "c"})}, []string{"c"}, true, false},
		{"none is allowed, and its record is missing", neighbour{none: true}, nil, false, true},
	} {
		t.Run(tc.what, func(t *testing.T) {
			f := tc.fabric
			f.link = peer.Link{ID: far, Name: "b"}
			c := newCluster(k, record{Spec: Spec{Name: "ann", Targets: tc.targets}, ID: id, Seed: seed})
			got := further(c, f, map[peer.ID]bool{far: true})
			if listed := len(got.Links)+len(got.Unlinked) > 0; listed != tc.listed || len(got.Ended) > 0 != tc.ended {
				t.Errorf("%+v", got)
			}
			if got := further(c, f, nil); len(got.Ended) > 0 {
				t.Errorf("it hears of one that it does not know: %+v", got)
			}
		})
	}
}

// lender is the fabric of a peer that lends.
type lender struct {
	neighbour
	mux *http.ServeMux
}

func (l lender) Handle(pattern string, h http.Handler) { l.mux.Handle(pattern, h) }

// TestTargetsAreTold: a peer serves a virtual cluster that has it as a target, from the change on and until it is taken back.
func TestTargetsAreTold(t *testing.T) {
	host := peer.Hosted("x", "host")
	mux := http.NewServeMux()
	b := httptest.NewServer(mux)
	defer b.Close()
	f := neighbour{link: peer.Link{ID: peer.Hosted("x", "b"), Name: "b", PeerCIDR: netip.MustParsePrefix("10.42.0.0/16"), PeerMappedCIDR: netip.MustParsePrefix("240.3.0.0/16")}, server: b}
	there := lender{neighbour{link: peer.Link{ID: host}}, mux}
	_, err := provider.New(provider.Config{Peers: there, Config: tenancy.Config{
		Local: &rest.Config{Host: "https://127.0.0.1:1"}, Log: slog.New(slog.DiscardHandler),
		PeerID: func(*http.Request) (peer.ID, bool) { return host, true },
		Tenants: func(peer.ID) []netip.Addr {
			return []netip.Addr{netip.MustParseAddr("10.42.0.9"), netip.MustParseAddr("10.9.9.9")}
		},
	}})
	must(t, err)
	k := New(Config{ID: host, Log: slog.New(slog.DiscardHandler)})
	id, seed := newID(k.cfg.ID)
	c := newCluster(k, record{Spec: Spec{Name: "ann", Targets: []string{"b"}}, ID: id, Seed: seed})
	k.all["ann"] = c
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.FollowTargets(ctx, f, netip.AddrPort{}, &homeapi.Router{Pass: func(func(net.Conn), ...string) {}, Log: k.cfg.Log})
	}()
	defer func() { cancel(); <-done }()
	served := func(want bool) func() error {
		return func() error {
			w := httptest.NewRecorder()
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			toTarget(c, w, httptest.NewRequestWithContext(ctx, "GET", "http://host"+controlplane.AtPath+string(f.link.ID)+"/v1/offer", nil))
			if (w.Code == http.StatusOK) != want {
				return errors.New(w.Body.String())
			}
			return nil
		}
	}
	await.NoError(t, ctx, 10*time.Second, "it is served", served(true))
	if got := k.Away(id); len(got) != 1 || got[0].String() != "240.3.0.9" {
		t.Errorf("its pods there are %v", got)
	}
	c.mu.Lock()
	c.rec.Targets = nil
	c.mu.Unlock()
	k.changed.Notify()
	await.NoError(t, ctx, 10*time.Second, "it is refused", served(false))
	await.NoError(t, ctx, 10*time.Second, "no pods of it are there", func() error {
		if len(k.Away(id)) > 0 {
			return errors.New("some are")
		}
		return nil
	})
}

// TestPodsAtATarget: with real API servers, a pod that does not fit on the host runs at the peer, in a twin of its own
// there, and waits with the reason once the target is taken back; nothing is left at the peer.
func TestPodsAtATarget(t *testing.T) {
	t.Parallel()
	host, far := apiserver.Start(t), apiserver.Start(t)
	apiserver.StartKubelet(t, host, "host-node")
	apiserver.StartKubelet(t, far, "far-node")
	d := newDevice(t, apiserver.Binary(t))
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	run := func(f func(context.Context)) { running.Go(func() { f(ctx) }) }
	lend := func(at *apiserver.Server, peers provider.Peers, hosted provider.Hosted, id func(*http.Request) (peer.ID, bool)) *provider.Provider {
		p, err := provider.New(provider.Config{Peers: peers, Hosted: hosted, Config: tenancy.Config{Local: at.Config, PeerID: id, Log: d.cfg.Log}})
		must(t, err)
		run(func(ctx context.Context) { _ = p.Run(ctx) })
		return p
	}
	lent := lend(host, &nobody{}, d.k, rpc.PeerID)
	d.k.Attach(lent.Twins(), tenancy.Room(lent.Twins()))
	mux := http.NewServeMux()
	b := httptest.NewServer(mux)
	defer b.Close()
	lend(far, lender{neighbour{link: peer.Link{ID: d.cfg.ID, Name: "a"}}, mux}, nil, func(*http.Request) (peer.ID, bool) { return d.cfg.ID, true })
	pods, here, there := netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("240.3.0.0/16"), netip.MustParsePrefix("240.5.0.0/16")
	f := neighbour{link: peer.Link{ID: peer.Hosted("x", "b"), Name: "b", Addr: netip.MustParseAddrPort("240.3.255.254:7442"), PeerCIDR: pods, PeerMappedCIDR: here, LocalMappedCIDR: there, State: peer.Connected}, server: b}
	run(func(ctx context.Context) {
		d.k.FollowTargets(ctx, f, netip.MustParseAddrPort("10.42.255.254:7442"), &homeapi.Router{Pass: func(func(net.Conn), ...string) {}, Log: d.cfg.Log})
	})

	d.create(Spec{Name: "far", Quota: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}, Targets: []string{"b"}})
	client := d.client("far")
	labels := map[string]string{"app": "web"}
	_, err := client.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1"}}}}}}, metav1.CreateOptions{})
	must(t, err)
	_, err = client.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	must(t, err)
	pod := func(want func(corev1.Pod) bool) func() error {
		return func() error {
			list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 || !want(list.Items[0]) {
				return fmt.Errorf("%v %w", list, err)
			}
			return nil
		}
	}
	await.NoError(t, ctx, time.Minute, "it runs at b", pod(func(p corev1.Pod) bool { return p.Spec.NodeName == "b" && p.Status.Phase == corev1.PodRunning }))
	clients, err := kubernetes.NewForConfig(far.Config)
	must(t, err)
	twins := func() int {
		list, err := clients.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.HostLabel + "=" + string(d.cfg.ID)})
		must(t, err)
		return len(list.Items)
	}
	if twins() == 0 {
		t.Error("its twin does not name its host")
	}
	services := func(at *apiserver.Server) (names []string) {
		c, err := kubernetes.NewForConfig(at.Config)
		must(t, err)
		list, err := c.CoreV1().Services("").List(ctx, metav1.ListOptions{LabelSelector: policy.ReflectedLabel})
		must(t, err)
		for _, s := range list.Items {
			names = append(names, s.Name)
		}
		return names
	}
	lan := policy.LANServicePrefix + "web"
	await.NoError(t, ctx, time.Minute, "the host opens its Service", func() error {
		if all := services(host); !slices.Contains(all, lan) {
			return fmt.Errorf("%q", all)
		}
		return nil
	})
	await.NoError(t, ctx, time.Minute, "b has the Service, and opens nothing", func() error {
		if all := services(far); !slices.Contains(all, "web") || slices.Contains(all, lan) {
			return fmt.Errorf("%q", all)
		}
		return nil
	})
	_, err = d.k.Change(ctx, "far", Change{Targets: &[]string{}})
	must(t, err)
	await.NoError(t, ctx, time.Minute, "another waits", pod(func(p corev1.Pod) bool {
		return p.Spec.NodeName == "" && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return strings.Contains(c.Message, "host: too little pods") })
	}))
	await.NoError(t, ctx, time.Minute, "nothing is left at b", func() error {
		if n := twins(); n > 0 {
			return fmt.Errorf("%d twins", n)
		}
		return nil
	})
}
