package clusterset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	mcsclient "sigs.k8s.io/mcs-api/pkg/client/clientset/versioned"

	"rivulet/appliance/addons/clusterset/weights"
	"rivulet/appliance/config"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

var (
	mine  = peer.ID(strings.Repeat("a", 32))
	other = peer.ID(strings.Repeat("b", 32))
)

// neighbour is a fabric with one peer, whose exports are what a test says.
type neighbour struct {
	changes.Signal
	mu     sync.Mutex
	link   peer.Link
	gone   bool
	lines  chan string
	server *httptest.Server
}

func newNeighbour(t *testing.T) *neighbour {
	n := &neighbour{lines: make(chan string), link: peer.Link{ID: other, Name: "b", State: peer.Connected, Trust: peer.TrustApproved, Nearness: 9,
		PeerCIDR: netip.MustParsePrefix("10.42.0.0/16"), PeerMappedCIDR: netip.MustParsePrefix("10.65.0.0/16")}}
	n.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		for {
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			select {
			case <-r.Context().Done():
				return
			case line := <-n.lines:
				fmt.Fprintln(w, line)
			}
		}
	}))
	t.Cleanup(n.server.Close)
	return n
}

func (n *neighbour) Links() []peer.Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone {
		return nil
	}
	return []peer.Link{n.link}
}
func (n *neighbour) Departed() []peer.ID { return nil }
func (n *neighbour) Client(peer.ID) (*http.Client, string, error) {
	return n.server.Client(), n.server.URL, nil
}
func (n *neighbour) Handle(string, http.Handler) {}
func (n *neighbour) change(do func()) {
	n.mu.Lock()
	do()
	n.mu.Unlock()
	n.Notify()
}
func (n *neighbour) exports(all ...Export) { n.lines <- strings.TrimSpace(string(encode(all))) }

// split keeps what a Set has put in force.
type split struct {
	atomic.Pointer[[]weights.Service]
}

func (s *split) Set(all []weights.Service)   { s.Store(&all) }
func (*split) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// theirs is an export of b with one pod.
func theirs(namespace, name string, ready bool) Export {
	return Export{Namespace: namespace, Name: name, Ports: []mcs.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		Slices: []Slice{{Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
			Endpoints: []Endpoint{{Address: netip.MustParseAddr("10.42.0.7"), Ready: ready, Serving: ready}, {Address: netip.MustParseAddr("192.0.2.1"), Ready: true, Serving: true}}}}}
}

// The whole life of imports and exports, in a real API server.
func TestLife(t *testing.T) {
	server := apiserver.Start(t)
	ctx := t.Context()
	n := newNeighbour(t)
	setting := config.Services{}
	var s *Set
	var weighted split
	var open atomic.Int32 // to how many peers something is open, as the rules were last told
	s = New(Config{ID: mine, API: func() (*rest.Config, error) { return server.Config, nil }, Fabric: func() Fabric { return n }, PodCIDR: func() netip.Prefix { return netip.MustParsePrefix("10.42.0.0/16") },
		Cordoned: func() map[peer.ID]bool { return nil }, NodesChanged: n.Changed,
		Setting: func() config.Services { n.mu.Lock(); defer n.mu.Unlock(); return setting }, Exported: func() { _, to := s.Openings(); open.Store(int32(len(to))) }, Weights: &weighted, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	s.settle = 3 * time.Second
	run := func() (stop func()) {
		m, err := lifecycle.New(s.Log, lifecycle.Component{Name: "services", Run: s.Run})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		return func() { cancel(); <-done }
	}
	stop := run()
	defer func() { stop() }()
	kube := server.Client
	shared, err := mcsclient.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	api := shared.MulticlusterV1beta1()
	for name, labels := range map[string]map[string]string{"shop": nil, "twin": {policy.OriginLabel: "x"}, "apart": nil} {
		if _, err := kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// addresses are the endpoints that get the traffic, and all that are ready.
	addresses := func(namespace string) (used, ready []string) {
		list, err := kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: ObjectLabel})
		if err != nil {
			return nil, nil
		}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if *e.Conditions.Ready {
					ready = append(ready, e.Addresses...)
				}
				if slice.Labels[discoveryv1.LabelServiceName] != "" {
					used = append(used, e.Addresses...)
				}
			}
		}
		slices.Sort(used)
		slices.Sort(ready)
		return used, ready
	}
	until := func(what string, check func() error) {
		t.Helper()
		await.NoError(t, ctx, 30*time.Second, what, check)
	}
	traffic := func(what string, used, ready []string) {
		t.Helper()
		until(what, func() error {
			if u, r := addresses("shop"); !slices.Equal(u, used) || !slices.Equal(r, ready) {
				return fmt.Errorf("used %v, ready %v", u, r)
			}
			return nil
		})
	}
	condition := func(name, kind string, want metav1.ConditionStatus, reason string) {
		t.Helper()
		until(fmt.Sprintf("%s of %s is %s, %s", kind, name, want, reason), func() error {
			e, err := api.ServiceExports("shop").Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if c := meta.FindStatusCondition(e.Status.Conditions, kind); c == nil || c.Status != want || c.Reason != reason {
				return fmt.Errorf("%+v", e.Status.Conditions)
			}
			return nil
		})
	}

	n.exports(theirs("shop", "web", true), theirs("twin", "web", true), theirs("default", "web", true), theirs("kube-system", "web", true), theirs("nowhere", "web", true))
	traffic("b's pod in this cluster's view, and nothing outside of its prefix", []string{"10.65.0.7"}, []string{"10.65.0.7"})
	until("an import with the address of its Service", func() error {
		i, err := api.ServiceImports("shop").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		service, err := kube.CoreV1().Services("shop").Get(ctx, derivedName("web"), metav1.GetOptions{})
		if err == nil && (len(i.Spec.IPs) != 1 || i.Spec.IPs[0] != service.Spec.ClusterIP || len(i.Status.Clusters) != 1 || i.Status.Clusters[0].Cluster != string(other)) {
			err = fmt.Errorf("%+v, %s", i, service.Spec.ClusterIP)
		}
		return err
	})
	if list, err := api.ServiceImports(metav1.NamespaceAll).List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("imports in namespaces that take no part: %+v, %v", list.Items, err)
	}
	if err := kube.CoreV1().Services("shop").Delete(ctx, derivedName("web"), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("the Service is made again, and the import has its address", func() error {
		service, err := kube.CoreV1().Services("shop").Get(ctx, derivedName("web"), metav1.GetOptions{})
		if err != nil {
			return err
		}
		i, err := api.ServiceImports("shop").Get(ctx, "web", metav1.GetOptions{})
		if err == nil && i.Spec.IPs[0] != service.Spec.ClusterIP {
			err = errors.New("another address")
		}
		return err
	})

	i, err := api.ServiceImports("shop").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	i.Spec.Type = mcs.Headless
	if _, err := api.ServiceImports("shop").Update(ctx, i, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("what others change in an import is put back", func() error {
		i, err := api.ServiceImports("shop").Get(ctx, "web", metav1.GetOptions{})
		if err == nil && i.Spec.Type != mcs.ClusterSetIP {
			err = fmt.Errorf("%+v", i.Spec)
		}
		return err
	})

	// This cluster's own: its pod gets all traffic.
	if _, err := api.ServiceExports("shop").Create(ctx, &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	condition("web", "Valid", metav1.ConditionFalse, "NoService")
	if _, err := kube.CoreV1().Services("shop").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	own, err := kube.DiscoveryV1().EndpointSlices("shop").Create(ctx, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.3"}}, {Addresses: []string{"10.99.0.1"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	condition("web", "Valid", metav1.ConditionTrue, "Valid")
	condition("web", "Conflict", metav1.ConditionFalse, "NoConflicts")
	traffic("this cluster's own pod is used", []string{"10.42.0.3"}, []string{"10.42.0.3", "10.65.0.7"})
	until("what is open to b", func() error {
		if names, to := s.Openings(); len(names) != 1 || names[0].String() != "shop/web" || !slices.Equal(to, []peer.ID{other}) {
			return fmt.Errorf("%v to %v", names, to)
		}
		return nil
	})

	// With weights both have a share, until one has nothing that is ready, or the weights go.
	weigh := func(value string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, WeightsAnnotation, value)
		if _, err := api.ServiceImports("shop").Patch(ctx, "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	shares := func(what string, parts int, status metav1.ConditionStatus, want ...float64) {
		t.Helper()
		until(what, func() error {
			all := *weighted.Load()
			if parts == 0 && len(all) > 0 || parts > 0 && (len(all) != 1 || len(all[0].Parts) != parts || all[0].Addr.Port() != 80) {
				return fmt.Errorf("%+v", all)
			}
			st := s.Status().Services
			at := slices.IndexFunc(st, func(x Service) bool { return x.Namespace == "shop" })
			var got []float64
			for _, f := range st[at].From {
				got = append(got, f.Share)
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("shares %v", got)
			}
			i, err := api.ServiceImports("shop").Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if c := meta.FindStatusCondition(i.Status.Conditions, conditionWeighted); c == nil && status != "" || c != nil && c.Status != status {
				return fmt.Errorf("%+v", i.Status.Conditions)
			}
			return nil
		})
	}
	weigh(`"home=3,b=1"`)
	shares("three quarters for this cluster", 2, metav1.ConditionTrue, 0.25, 0.75) // b's export was first
	if all := *weighted.Load(); all[0].Parts[0].Endpoints[0].String() != "10.65.0.7:8080" || all[0].Parts[1].Weight != 3 || len(all[0].Parts[1].Endpoints) != 1 {
		t.Errorf("%+v", all)
	}
	traffic("kube-proxy has the endpoints of both, for as long as there is no table", []string{"10.42.0.3", "10.65.0.7"}, []string{"10.42.0.3", "10.65.0.7"})
	n.exports(theirs("shop", "web", false))
	shares("b has nothing that is ready", 0, metav1.ConditionTrue, 0, 1)
	n.exports(theirs("shop", "web", true))
	shares("it has again", 2, metav1.ConditionTrue, 0.25, 0.75)
	n.change(func() { n.link.State = peer.Lost })
	shares("b is lost", 0, metav1.ConditionTrue, 0, 1)
	n.change(func() { n.link.State = peer.Connected })
	shares("it is back", 2, metav1.ConditionTrue, 0.25, 0.75)
	weigh(`"home=all"`)
	shares("weights that are none", 0, metav1.ConditionFalse, 0, 1)
	weigh(`"b=1"`)
	traffic("only b has a weight", []string{"10.65.0.7"}, []string{"10.42.0.3", "10.65.0.7"})
	weigh(`null`)
	shares("no weights", 0, "", 0, 0)
	traffic("this cluster's own pod is used again", []string{"10.42.0.3"}, []string{"10.42.0.3", "10.65.0.7"})

	own.Endpoints[0].Conditions.Ready = new(false)
	if _, err := kube.DiscoveryV1().EndpointSlices("shop").Update(ctx, own, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	traffic("it is not ready", []string{"10.65.0.7"}, []string{"10.65.0.7"})
	n.change(func() { n.link.State = peer.Lost })
	traffic("b is lost", []string{"10.42.0.3"}, nil)
	n.change(func() { n.link.State = peer.Connected })
	differs := theirs("shop", "web", true)
	differs.Ports[0].Port = 8080
	n.exports(differs)
	condition("web", "Conflict", metav1.ConditionTrue, "PortConflict")
	traffic("the port is this cluster's own, and no port of b's", []string{"10.42.0.3"}, []string{"10.65.0.7"})

	// A restart changes nothing before b was heard.
	stop()
	stop = run()
	if _, ready := addresses("shop"); len(ready) != 1 {
		t.Errorf("after a restart: %v", ready)
	}
	n.exports(theirs("shop", "web", true))
	condition("web", "Conflict", metav1.ConditionFalse, "NoConflicts")
	until("b's export is still the first", func() error {
		if all := s.Status().Services; len(all) != 1 || len(all[0].From) != 2 || all[0].From[0].ID != other {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})

	// Somebody else's import stays as it is.
	if _, err := api.ServiceImports("apart").Create(ctx, &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: mcs.ServiceImportSpec{Type: mcs.Headless, Ports: []mcs.ServicePort{}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.exports(theirs("shop", "web", true), theirs("apart", "web", true))
	until("b's export in apart", func() error {
		if !slices.ContainsFunc(s.Status().Services, func(x Service) bool { return x.Namespace == "apart" }) {
			return errors.New("not yet")
		}
		return nil
	})
	if i, err := api.ServiceImports("apart").Get(ctx, "web", metav1.GetOptions{}); err != nil || i.Spec.Type != mcs.Headless || len(i.Labels) > 0 {
		t.Errorf("%+v, %v", i, err)
	}

	// Consent is withdrawn: nothing of b is left, and nothing is open to it.
	n.change(func() { setting.Import = config.ServicesGroup })
	open.Store(-1)
	s.SettingChanged()
	if open.Load() != 0 {
		t.Errorf("the rules of what is open were not told, or of %d peers", open.Load())
	}
	traffic("no b", []string{"10.42.0.3"}, nil)
	if _, to := s.Openings(); len(to) > 0 {
		t.Errorf("open to %v", to)
	}
	if err := api.ServiceExports("shop").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("nothing is left", func() error {
		list, err := api.ServiceImports("shop").List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%+v", list.Items)
		}
		if _, e := kube.CoreV1().Services("shop").Get(ctx, derivedName("web"), metav1.GetOptions{}); e == nil {
			err = errors.Join(err, errors.New("the Service"))
		}
		return err
	})
}
