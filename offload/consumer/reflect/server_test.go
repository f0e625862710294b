package reflect

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/offload/networkpolicy"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// fakeTarget is a second API server, without a network between. Reach is what
// the test says it is.
type fakeTarget struct {
	server *apiserver.Server

	mu      sync.Mutex
	reach   netip.Prefix // how the target sees home's pods
	changed chan struct{}
}

func (f *fakeTarget) Name() string                                     { return "b" }
func (f *fakeTarget) ID() string                                       { return "bid" }
func (f *fakeTarget) Client() kubernetes.Interface                     { return f.server.Client }
func (f *fakeTarget) Config() *rest.Config                             { return f.server.Config }
func (f *fakeTarget) Offers(context.Context) <-chan offer.Offer        { return nil }
func (f *fakeTarget) Home(a netip.Addr) (netip.Addr, bool)             { return a, true }
func (f *fakeTarget) Changed() (<-chan struct{}, func())               { return f.changed, func() {} }
func (f *fakeTarget) Release(context.Context, string) error            { return nil }
func (f *fakeTarget) Twins(context.Context) (map[string]string, error) { return nil, nil }
func (f *fakeTarget) Gone(context.Context, string) (bool, error)       { return true, nil }

func (f *fakeTarget) Away(a netip.Addr) (netip.Addr, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !homePods.Contains(a) {
		return netip.Addr{}, false
	}
	b, c := a.As4(), f.reach.Addr().As4()
	return netip.AddrFrom4([4]byte{c[0], c[1], b[2], b[3]}), true
}

func (f *fakeTarget) reachBy(prefix string) {
	f.mu.Lock()
	f.reach = netip.MustParsePrefix(prefix)
	f.mu.Unlock()
	f.changed <- struct{}{}
}

func (f *fakeTarget) Namespace(ctx context.Context, home string) (string, error) {
	twin := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: home + "-a"}}
	_, err := f.server.Client.CoreV1().Namespaces().Create(ctx, twin, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		ns, err := f.server.Client.CoreV1().Namespaces().Get(ctx, twin.Name, metav1.GetOptions{})
		if err == nil && ns.DeletionTimestamp != nil {
			return "", context.DeadlineExceeded // going; to be asked again
		}
		return twin.Name, err
	}
	return twin.Name, err
}

// users are what pods on the target refer to: what is named, and others as it says.
type users struct {
	mu            sync.Mutex
	named         map[policy.Object]bool
	others, known bool
}

func (u *users) use(o policy.Object) (used, known bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if used, named := u.named[o]; named {
		return used, true
	}
	return u.others, u.known
}

func (u *users) set(o policy.Object, used bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.named == nil {
		u.named = map[policy.Object]bool{}
	}
	u.named[o] = used
}

// A namespace is offloaded and lives: what is there appears, what changes
// follows, what goes goes, what is not ours is left alone.
func TestReflection(t *testing.T) {
	servers := apiserver.StartAll(t, 2)
	home, target := servers[0].Client, &fakeTarget{server: servers[1], reach: netip.MustParsePrefix("10.70.0.0/16"), changed: make(chan struct{}, 1)}
	away := target.server.Client
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()

	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	create := func(o any) {
		t.Helper()
		var err error
		switch o := o.(type) {
		case *corev1.Namespace:
			_, err = home.CoreV1().Namespaces().Create(ctx, o, metav1.CreateOptions{})
		case *corev1.Service:
			_, err = home.CoreV1().Services("lab").Create(ctx, o, metav1.CreateOptions{})
		case *corev1.ConfigMap:
			_, err = home.CoreV1().ConfigMaps("lab").Create(ctx, o, metav1.CreateOptions{})
		case *corev1.Secret:
			_, err = home.CoreV1().Secrets("lab").Create(ctx, o, metav1.CreateOptions{})
		case *discoveryv1.EndpointSlice:
			_, err = home.DiscoveryV1().EndpointSlices("lab").Create(ctx, o, metav1.CreateOptions{})
		}
		must(err)
	}
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	until := func(what string, ok func() bool) {
		t.Helper()
		await.True(t, time.Minute, what, ok)
	}

	// Before Rivulet starts: a twin with a leftover of ours, and with somebody's own map.
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: map[string]string{policy.NamespaceLabel: "burst"}}})
	_, err := target.Namespace(ctx, "lab")
	must(err)
	ours := map[string]string{policy.ReflectedLabel: "aid"}
	for _, m := range []*corev1.ConfigMap{
		{ObjectMeta: metav1.ObjectMeta{Name: "leftover", Labels: ours}},
		{ObjectMeta: named("theirs"), Data: map[string]string{"whose": "theirs"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "third", Labels: map[string]string{policy.ReflectedLabel: "cid"}}},
	} {
		_, err := away.CoreV1().ConfigMaps("lab-a").Create(ctx, m, metav1.CreateOptions{})
		must(err)
	}
	create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "conf", Labels: map[string]string{"app": "web"}}, Data: map[string]string{"k": "1"}})
	create(&corev1.ConfigMap{ObjectMeta: named("theirs"), Data: map[string]string{"whose": "ours"}})
	create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "private", Annotations: map[string]string{policy.ReflectAnnotation: "off"}}})
	create(&corev1.Secret{ObjectMeta: named("key"), Data: map[string][]byte{"k": {1}}})
	create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: corev1.SecretTypeServiceAccountToken})
	create(&corev1.Service{ObjectMeta: named("web"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}}}})
	yes, no := true, false
	create(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.42.0.5"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}},
			{Addresses: []string{"192.0.2.9"}},
		}})
	create(&corev1.Service{ObjectMeta: named("nas"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
	create(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "nas-6", Labels: map[string]string{discoveryv1.LabelServiceName: "nas"}}, AddressType: discoveryv1.AddressTypeIPv6,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"2001:db8::9"}}}})

	pods, supply := &users{others: true, known: true}, &Supply{}
	namespaces, policies := policy.New(home, slog.New(slog.DiscardHandler)), networkpolicy.NewWatcher(slog.New(slog.DiscardHandler))
	running.Go(func() {
		if err := policies.Run(ctx, home); err != nil {
			t.Errorf("policies: %v", err)
		}
	})
	running.Go(func() { _ = namespaces.Run(ctx) })
	running.Go(func() {
		if err := Run(ctx, Config{Home: home, Target: target, Namespaces: namespaces, Policies: policies, ClusterID: "aid", NodeAddress: netip.MustParseAddr("100.127.1.2"), Used: pods.use, Supply: supply}); err != nil {
			t.Errorf("Run: %v", err)
		}
	})

	configMap := func(name string) *corev1.ConfigMap {
		m, err := away.CoreV1().ConfigMaps("lab-a").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return m
	}
	slice := func() *discoveryv1.EndpointSlice {
		s, err := away.DiscoveryV1().EndpointSlices("lab-a").Get(ctx, "web-1", metav1.GetOptions{})
		if err != nil {
			return &discoveryv1.EndpointSlice{}
		}
		return s
	}
	addresses := func() (all []string) {
		for _, e := range slice().Endpoints {
			all = append(all, e.Addresses...)
		}
		return all
	}

	t.Run("what is there appears", func(t *testing.T) {
		until("config map", func() bool { m := configMap("conf"); return m != nil && m.Data["k"] == "1" && m.Labels["app"] == "web" })
		until("secret", func() bool {
			_, err := away.CoreV1().Secrets("lab-a").Get(ctx, "key", metav1.GetOptions{})
			return err == nil
		})
		until("service", func() bool {
			s, err := away.CoreV1().Services("lab-a").Get(ctx, "web", metav1.GetOptions{})
			return err == nil && s.Spec.Type == corev1.ServiceTypeClusterIP && s.Spec.Selector == nil && s.Spec.ClusterIP != "" && s.Spec.Ports[0].TargetPort.StrVal == "http"
		})
		until("endpoints as the target sees them", func() bool { return strings.Join(addresses(), " ") == "10.70.0.5" })
		if s := slice(); s.Labels[discoveryv1.LabelManagedBy] != "rivulet.dev" || !*s.Endpoints[0].Conditions.Serving {
			t.Errorf("slice %v %v", s.Labels, s.Endpoints)
		}
		until("its node port", func() bool {
			at, err := home.CoreV1().Services("lab").Get(ctx, "web", metav1.GetOptions{})
			s, again := away.CoreV1().Services("lab-a").Get(ctx, "rv-np-web", metav1.GetOptions{})
			return err == nil && again == nil && s.Spec.Ports[0].Port == at.Spec.Ports[0].NodePort && s.Spec.Ports[0].TargetPort.StrVal == "http" &&
				s.Annotations[policy.HomeNodeAnnotation] == "100.127.1.2" && s.Annotations[policy.HomeAddressAnnotation] == ""
		})
		until("with the same endpoints", func() bool {
			s, err := away.DiscoveryV1().EndpointSlices("lab-a").Get(ctx, "rv-np-web-1", metav1.GetOptions{})
			return err == nil && s.Labels[discoveryv1.LabelServiceName] == "rv-np-web" && len(s.Endpoints) == 1 && s.Endpoints[0].Addresses[0] == "10.70.0.5"
		})
		until("leftovers go", func() bool { return configMap("leftover") == nil })
	})

	t.Run("what is left out is told on the Service, once", func(t *testing.T) {
		for service, address := range map[string]string{"web": "192.0.2.9", "nas": "2001:db8::9"} {
			until("an event on "+service, func() bool {
				events, err := home.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "reason=ReflectionLeftOut,involvedObject.kind=Service,involvedObject.name=" + service})
				return err == nil && len(events.Items) == 1 && events.Items[0].Count == 1 && strings.Contains(events.Items[0].Message, address)
			})
		}
	})

	t.Run("what is not ours is left alone", func(t *testing.T) {
		until("an event at home", func() bool {
			events, err := home.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "reason=ReflectionConflict"})
			return err == nil && len(events.Items) == 1 && events.Items[0].InvolvedObject.Name == "theirs"
		})
		if m := configMap("theirs"); m == nil || m.Data["whose"] != "theirs" {
			t.Errorf("theirs is now %v", m)
		}
		if configMap("third") == nil {
			t.Error("another home's object was deleted")
		}
		if configMap("private") != nil {
			t.Error("an object that was to stay at home has left it")
		}
		if _, err := away.CoreV1().Secrets("lab-a").Get(ctx, "token", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("a token of home: %v", err)
		}
	})

	t.Run("changes follow", func(t *testing.T) {
		patch := func(body string) {
			t.Helper()
			_, err := home.CoreV1().ConfigMaps("lab").Patch(ctx, "conf", types.MergePatchType, []byte(body), metav1.PatchOptions{})
			must(err)
		}
		patch(`{"data":{"k":"2"}}`)
		until("new data", func() bool { return configMap("conf").Data["k"] == "2" })
		_, err := away.CoreV1().ConfigMaps("lab-a").Patch(ctx, "conf", types.MergePatchType, []byte(`{"data":{"k":"by hand"}}`), metav1.PatchOptions{})
		must(err)
		until("a change by hand is put right", func() bool { return configMap("conf").Data["k"] == "2" })
		must(away.CoreV1().ConfigMaps("lab-a").Delete(ctx, "conf", metav1.DeleteOptions{}))
		until("a deletion by hand is put right", func() bool { return configMap("conf") != nil })
		patch(`{"immutable":true}`)
		until("frozen", func() bool { return frozen(configMap("conf").Immutable) })
		must(home.CoreV1().ConfigMaps("lab").Delete(ctx, "conf", metav1.DeleteOptions{}))
		create(&corev1.ConfigMap{ObjectMeta: named("conf"), Data: map[string]string{"k": "3"}})
		until("frozen data made anew", func() bool { m := configMap("conf"); return m != nil && m.Data["k"] == "3" })
		patch(`{"metadata":{"annotations":{"rivulet.dev/reflect":"off"}}}`)
		until("called home", func() bool { return configMap("conf") == nil })
		patch(`{"metadata":{"annotations":null}}`)
		until("sent out again", func() bool { return configMap("conf") != nil })
		target.reachBy("10.99.0.0/16")
		until("another way to the same pods", func() bool { return strings.Join(addresses(), " ") == "10.99.0.5" })
		until("also to the node port", func() bool {
			s, err := away.DiscoveryV1().EndpointSlices("lab-a").Get(ctx, "rv-np-web-1", metav1.GetOptions{})
			return err == nil && s.Endpoints[0].Addresses[0] == "10.99.0.5"
		})
		nodePort := func(want bool) func() bool {
			return func() bool {
				_, service := away.CoreV1().Services("lab-a").Get(ctx, "rv-np-web", metav1.GetOptions{})
				_, slice := away.DiscoveryV1().EndpointSlices("lab-a").Get(ctx, "rv-np-web-1", metav1.GetOptions{})
				if want {
					return service == nil && slice == nil
				}
				return apierrors.IsNotFound(service) && apierrors.IsNotFound(slice)
			}
		}
		become := func(kind string) {
			t.Helper()
			_, err := home.CoreV1().Services("lab").Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"type":"`+kind+`"}}`), metav1.PatchOptions{})
			must(err)
		}
		become("ClusterIP")
		until("a Service without node ports has none away", nodePort(false))
		become("NodePort")
		until("one that gets some has them away, too", nodePort(true))
		must(home.CoreV1().Services("lab").Delete(ctx, "web", metav1.DeleteOptions{}))
		until("node ports go with the Service", nodePort(false))
		until("deleted", func() bool {
			_, err := away.CoreV1().Services("lab-a").Get(ctx, "web", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})

	t.Run("kinds of a namespace, and what does not follow", func(t *testing.T) {
		annotate := func(body string) {
			t.Helper()
			_, err := home.CoreV1().Namespaces().Patch(ctx, "lab", types.MergePatchType, []byte(`{"metadata":{"annotations":{"rivulet.dev/reflect":`+body+`}}}`), metav1.PatchOptions{})
			must(err)
		}
		secret := func(want bool) func() bool {
			return func() bool {
				_, err := away.CoreV1().Secrets("lab-a").Get(ctx, "key", metav1.GetOptions{})
				return (err == nil) == want && (err == nil || apierrors.IsNotFound(err))
			}
		}
		annotate(`"Secret=opt-in"`)
		until("a Secret that is not opted in goes", secret(false))
		_, err := home.CoreV1().Secrets("lab").Patch(ctx, "key", types.MergePatchType, []byte(`{"metadata":{"annotations":{"rivulet.dev/reflect":"on"}}}`), metav1.PatchOptions{})
		must(err)
		until("one that is comes", secret(true))
		annotate(`"Secret=off"`)
		until("a kind that is off goes", secret(false))
		if configMap("conf") == nil {
			t.Error("another kind went with it")
		}
		annotate(`"Sekret=off"`)
		until("nonsense is ignored, and told", func() bool {
			events, err := home.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "reason=InvalidOffload"})
			return err == nil && len(events.Items) > 0 && secret(true)()
		})
		annotate(`null`)
	})

	t.Run("a namespace of which the Services alone follow", func(t *testing.T) {
		patch := func(body string, args ...any) {
			t.Helper()
			_, err := home.CoreV1().Namespaces().Patch(ctx, "lab", types.MergePatchType, fmt.Appendf(nil, `{"metadata":`+body+`}`, args...), metav1.PatchOptions{})
			must(err)
		}
		there := func(name string) bool {
			_, err := away.CoreV1().Services("lab-a").Get(ctx, name, metav1.GetOptions{})
			return err == nil
		}
		key, conf, late := policy.Object{Kind: policy.KindSecret, Namespace: "lab", Name: "key"}, policy.Object{Kind: policy.KindConfigMap, Namespace: "lab", Name: "conf"}, policy.Object{Kind: policy.KindSecret, Namespace: "lab", Name: "later"}
		secret := func(name string) bool {
			_, err := away.CoreV1().Secrets("lab-a").Get(ctx, name, metav1.GetOptions{})
			return err == nil
		}
		pods.set(late, false)
		patch(`{"labels":{%q:%q}}`, policy.NamespaceLabel, policy.Services)
		until("policy", func() bool { return namespaces.Namespaces()["lab"].When == policy.Services })
		create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "later", Annotations: map[string]string{policy.ReflectAnnotation: policy.ReflectOn}}})
		create(&corev1.Service{ObjectMeta: named("later"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
		create(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "later-1", Labels: map[string]string{discoveryv1.LabelServiceName: "later"}}, AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.5"}}}})
		until("a new Service follows, with where it leads", func() bool {
			s, err := away.DiscoveryV1().EndpointSlices("lab-a").Get(ctx, "later-1", metav1.GetOptions{})
			return err == nil && len(s.Endpoints) == 1 && there("later")
		})
		if !there("nas") || !secret("key") || configMap("conf") == nil || secret("later") {
			t.Errorf("a Service %v, what pods that are still there use %v %v, another Secret %v", there("nas"), secret("key"), configMap("conf"), secret("later"))
		}
		for _, o := range []policy.Object{key, conf} {
			pods.set(o, false)
			supply.Check(o)
		}
		until("what these pods used goes with them, whatever its annotation", func() bool { return !secret("key") && configMap("conf") == nil })
		patch(`{"annotations":{%q:"Service=off"}}`, policy.ReflectAnnotation)
		until("Services that its owner withdraws go", func() bool { return !there("later") && !there("nas") })
		patch(`{"annotations":{%q:null}}`, policy.ReflectAnnotation)
		until("and come back", func() bool { return there("later") && there("nas") })
		must(home.CoreV1().Services("lab").Delete(ctx, "later", metav1.DeleteOptions{}))
		must(home.DiscoveryV1().EndpointSlices("lab").Delete(ctx, "later-1", metav1.DeleteOptions{}))
		must(home.CoreV1().Secrets("lab").Delete(ctx, "later", metav1.DeleteOptions{}))
		for _, o := range []policy.Object{key, conf} {
			pods.set(o, true)
		}
		patch(`{"labels":{%q:%q}}`, policy.NamespaceLabel, policy.Burst)
		until("the others come back", func() bool { return configMap("conf") != nil && secret("key") })
	})

	t.Run("only what pods refer to", func(t *testing.T) { onlyWhatIsUsed(t, home, away, pods, supply) })

	t.Run("policies follow as the target sees their peers", func(t *testing.T) {
		spec := func() (p networkingv1.NetworkPolicySpec, there bool) {
			n, err := away.NetworkingV1().NetworkPolicies("lab-a").Get(ctx, "db", metav1.GetOptions{})
			if err != nil {
				return p, false
			}
			return n.Spec, true
		}
		from := func(want string) func() bool {
			return func() bool {
				p, there := spec()
				if !there || len(p.Ingress) == 0 {
					return there && want == ""
				}
				var cidrs []string
				for _, peer := range p.Ingress[0].From {
					cidrs = append(cidrs, peer.IPBlock.CIDR)
				}
				return strings.Join(cidrs, " ") == want
			}
		}
		pods := home.CoreV1().Pods("lab")
		_, err := pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
		must(err)
		address := func(a string) {
			t.Helper()
			_, err := pods.Patch(ctx, "web", types.MergePatchType, []byte(`{"status":{"podIP":"`+a+`","podIPs":[{"ip":"`+a+`"}]}}`), metav1.PatchOptions{}, "status")
			must(err)
		}
		must(func() error {
			_, err := home.NetworkingV1().NetworkPolicies("lab").Create(ctx, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "db", Labels: map[string]string{"app": "db"}},
				Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Ingress: []networkingv1.NetworkPolicyIngressRule{
					{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}}}}}, metav1.CreateOptions{})
			return err
		}())
		until("a policy whose peer has no address lets nobody in", from(""))
		if p, _ := spec(); p.PodSelector.MatchLabels["app"] != "db" || len(p.PolicyTypes) != 1 {
			t.Errorf("%+v", p)
		}
		address("10.42.0.5")
		until("the peer", from("10.99.0.5/32"))
		address("10.42.0.6")
		until("another address", from("10.99.0.6/32"))
		target.reachBy("10.70.0.0/16")
		until("another way", from("10.70.0.6/32"))
		must(pods.Delete(ctx, "web", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		until("no peer any more", from(""))
		annotate := func(v string) {
			t.Helper()
			_, err := home.NetworkingV1().NetworkPolicies("lab").Patch(ctx, "db", types.MergePatchType, []byte(`{"metadata":{"annotations":{"rivulet.dev/reflect":`+v+`}}}`), metav1.PatchOptions{})
			must(err)
		}
		annotate(`"off"`)
		until("called home", func() bool { _, there := spec(); return !there })
		annotate(`null`)
		until("sent out again", func() bool { _, there := spec(); return there })
		target.reachBy("10.99.0.0/16")
	})

	t.Run("an Ingress follows where it is opted in", func(t *testing.T) {
		of := func(c kubernetes.Interface, ns, name string) *networkingv1.Ingress {
			i, err := c.NetworkingV1().Ingresses(ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return nil
			}
			return i
		}
		create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{"haproxy.org/snippet": "x"}}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}})
		class, prefix := "of-home", networkingv1.PathTypePrefix
		for name, on := range map[string]string{"shop": "on", "inner": ""} {
			_, err := home.NetworkingV1().Ingresses("lab").Create(ctx, &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"rivulet.dev/reflect": on, "nginx.example/snippet": "x"}},
				Spec: networkingv1.IngressSpec{IngressClassName: &class, TLS: []networkingv1.IngressTLS{{Hosts: []string{"shop.example"}, SecretName: "key"}}, Rules: []networkingv1.IngressRule{{Host: "shop.example", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
					Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &prefix, Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}}}}}}}}}, metav1.CreateOptions{})
			must(err)
		}
		until("the one that is opted in", func() bool { return of(away, "lab-a", "shop") != nil })
		if i := of(away, "lab-a", "shop"); i.Spec.IngressClassName != nil || len(i.Annotations) != 0 || i.Spec.TLS[0].SecretName != "key" || i.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name != "rivulet-ingress-web" {
			t.Errorf("%+v", i)
		}
		second := func() *corev1.Service {
			s, err := away.CoreV1().Services("lab-a").Get(ctx, "rivulet-ingress-web", metav1.GetOptions{})
			if err != nil {
				return nil
			}
			return s
		}
		until("the Service that it leads to chooses pods of the target", func() bool {
			s := second()
			return s != nil && s.Spec.Selector["app"] == "web" && s.Spec.Type == corev1.ServiceTypeClusterIP && s.Spec.Ports[0].Port == 80 && len(s.Annotations) == 0
		})
		written := func() (id types.UID) {
			l, err := away.DiscoveryV1().EndpointSlices("lab-a").List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=rivulet-ingress-web"})
			if err == nil && len(l.Items) == 1 && l.Items[0].Labels[discoveryv1.LabelManagedBy] == "endpointslice-controller.k8s.io" {
				id = l.Items[0].UID
			}
			return id
		}
		until("the target writes its endpoints", func() bool { return written() != "" })
		endpoints := written()
		point := func(c kubernetes.Interface, ns, name, ip string) {
			t.Helper()
			_, err := c.NetworkingV1().Ingresses(ns).Patch(ctx, name, types.MergePatchType, []byte(`{"status":{"loadBalancer":{"ingress":[{"ip":"`+ip+`"}]}}}`), metav1.PatchOptions{FieldManager: "controller"}, "status")
			must(err)
		}
		at := func(name, want string) func() bool {
			return func() bool {
				got := ""
				if i := of(home, "lab", name); i != nil && len(i.Status.LoadBalancer.Ingress) > 0 {
					got = i.Status.LoadBalancer.Ingress[0].IP
				}
				return got == want
			}
		}
		point(away, "lab-a", "shop", "192.0.2.7")
		until("its address comes back", at("shop", "192.0.2.7"))
		point(away, "lab-a", "shop", "192.0.2.8")
		until("and follows", at("shop", "192.0.2.8"))
		// A controller of home has the last word on its own.
		point(home, "lab", "inner", "192.0.2.1")
		point(home, "lab", "shop", "192.0.2.1")
		point(away, "lab-a", "shop", "192.0.2.9")
		_, err := home.NetworkingV1().Ingresses("lab").Patch(ctx, "shop", types.MergePatchType, []byte(`{"metadata":{"annotations":{"rivulet.dev/ingress-class":"lent"}}}`), metav1.PatchOptions{})
		must(err)
		until("a class of the target", func() bool {
			i := of(away, "lab-a", "shop")
			return i != nil && i.Spec.IngressClassName != nil && *i.Spec.IngressClassName == "lent"
		})
		if !at("shop", "192.0.2.1")() || !at("inner", "192.0.2.1")() {
			t.Error("addresses of home's own controller were overwritten")
		}
		if now := written(); now != endpoints || endpoints == "" {
			t.Errorf("the slice %s, which the target has written, is %s now", endpoints, now)
		}
		if of(away, "lab-a", "inner") != nil {
			t.Error("one that is not opted in has left home")
		}
		_, err = home.NetworkingV1().Ingresses("lab").Patch(ctx, "shop", types.MergePatchType, []byte(`{"metadata":{"annotations":{"rivulet.dev/reflect":null}}}`), metav1.PatchOptions{})
		must(err)
		until("called home", func() bool { return of(away, "lab-a", "shop") == nil })
		until("and the Service with it", func() bool { return second() == nil })
	})

	t.Run("an alias points to the twin", func(t *testing.T) {
		create(&corev1.Service{ObjectMeta: named("alias"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "web.lab.svc.cluster.local"}})
		until("under the twin's name", func() bool {
			s, err := away.CoreV1().Services("lab-a").Get(ctx, "alias", metav1.GetOptions{})
			return err == nil && s.Spec.ExternalName == "web.lab-a.svc.cluster.local"
		})
	})

	t.Run("at rest nothing is written", func(t *testing.T) {
		before := versions(t, away)
		// A marker that has to pass the same queue after everything else was looked at again.
		target.changed <- struct{}{}
		create(&corev1.ConfigMap{ObjectMeta: named("marker")})
		until("marker", func() bool { return configMap("marker") != nil })
		after := versions(t, away)
		delete(after, "marker")
		if !maps.Equal(before, after) {
			t.Errorf("resource versions went from %v to %v", before, after)
		}
	})

	t.Run("a twin that was deleted comes back", func(t *testing.T) {
		must(away.CoreV1().Namespaces().Delete(ctx, "lab-a", metav1.DeleteOptions{}))
		until("the old one is gone", func() bool {
			ns, err := away.CoreV1().Namespaces().Get(ctx, "lab-a", metav1.GetOptions{})
			return apierrors.IsNotFound(err) || err == nil && ns.DeletionTimestamp == nil
		})
		until("everything is there again", func() bool { return configMap("conf") != nil && len(addresses()) == 1 })
	})

	t.Run("a namespace called home is left as it is", func(t *testing.T) {
		_, err := home.CoreV1().Namespaces().Patch(ctx, "lab", types.MergePatchType, []byte(`{"metadata":{"labels":{"rivulet.dev/offload":"off"}}}`), metav1.PatchOptions{})
		must(err)
		until("policy", func() bool { return len(namespaces.Namespaces()) == 0 })
		if configMap("conf") == nil {
			t.Error("reflection emptied a twin; that is for Release to do")
		}
	})
}

// versions of all that is reflected in the twin.
func versions(t *testing.T, c kubernetes.Interface) map[string]string {
	t.Helper()
	list, err := c.CoreV1().ConfigMaps("lab-a").List(t.Context(), metav1.ListOptions{LabelSelector: policy.ReflectedLabel})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, m := range list.Items {
		all[m.Name] = m.ResourceVersion
	}
	slices, err := c.DiscoveryV1().EndpointSlices("lab-a").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range slices.Items {
		all["slice/"+s.Name] = s.ResourceVersion
	}
	policies, err := c.NetworkingV1().NetworkPolicies("lab-a").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range policies.Items {
		all["policy/"+p.Name] = p.ResourceVersion
	}
	return all
}

// humble is a target that takes no policies, by its nature or for want of rights.
type humble struct {
	*fakeTarget
	client kubernetes.Interface
}

func (h humble) Client() kubernetes.Interface { return h.client }

// A target that does not let us write policies, an older peer, gets all else; each
// policy says that it does not hold there.
func TestATargetWithoutPolicies(t *testing.T) {
	servers := apiserver.StartAll(t, 2)
	home, f := servers[0].Client, &fakeTarget{server: servers[1], reach: netip.MustParsePrefix("10.70.0.0/16"), changed: make(chan struct{}, 1)}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	// A consumer of an older version: everything that is reflected but policies.
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"services", "configmaps", "secrets"}, Verbs: []string{"*"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"*"}}}
	if _, err := f.server.Client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.server.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "old"},
		RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "old"}, Subjects: []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: "old"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	as := rest.CopyConfig(f.server.Config)
	as.Impersonate.UserName = "old"
	client, err := kubernetes.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := home.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: map[string]string{policy.NamespaceLabel: "burst"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := home.NetworkingV1().NetworkPolicies("lab").Create(ctx, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := home.CoreV1().ConfigMaps("lab").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "conf"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	namespaces := policy.New(home, slog.New(slog.DiscardHandler))
	running.Go(func() { _ = namespaces.Run(ctx) })
	running.Go(func() {
		if err := Run(ctx, Config{Home: home, Target: humble{f, client}, Namespaces: namespaces, Policies: networkpolicy.NewWatcher(slog.New(slog.DiscardHandler)), ClusterID: "aid", Used: (&users{others: true, known: true}).use}); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	await.True(t, time.Minute, "the event, and the other kinds", func() bool {
		events, err := home.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "reason=ReflectionRefused,involvedObject.name=deny"})
		if err != nil || len(events.Items) == 0 {
			return false
		}
		_, err = f.server.Client.CoreV1().ConfigMaps("lab-a").Get(ctx, "conf", metav1.GetOptions{})
		return err == nil
	})
}
