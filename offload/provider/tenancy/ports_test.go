package tenancy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"pgregory.net/rapid"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// No port is given twice, or outside of the range, or when it is somebody else's; no virtual cluster has more than its
// most; what was given stays; what is given up is given again.
func TestPortsOfTheLAN(t *testing.T) {
	owner := func(namespace string) peer.ID { return peer.ID(namespace[:1]) }
	rapid.Check(t, func(t *rapid.T) {
		ranges := map[peer.ID]Ports{"a": {First: 31000, Last: 31020}, "b": {}, "c": {First: 31000, Last: uint16(rapid.IntRange(31000, 31010).Draw(t, "c"))}}
		own := func(id peer.ID) Ports { return ranges[id] }
		within := Ports{First: 31000, Last: uint16(rapid.IntRange(31000, 31040).Draw(t, "last"))}
		busy := map[int32]bool{}
		for _, p := range rapid.SliceOfN(rapid.Int32Range(30990, 31050), 0, 8).Draw(t, "busy") {
			busy[p] = true
		}
		var all []*corev1.Service
		born := time.Now().Truncate(time.Second)
		add := func() {
			born = born.Add(time.Second)
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: rapid.SampledFrom([]string{"a1", "a2", "b1", "c1"}).Draw(t, "namespace"), Name: fmt.Sprint("s", born.Unix()), CreationTimestamp: metav1.NewTime(born)}}
			for i := range rapid.IntRange(1, 5).Draw(t, "ports") {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint(i), Protocol: rapid.SampledFrom([]corev1.Protocol{"TCP", "UDP"}).Draw(t, "protocol"), Port: 80})
			}
			all = append(all, s)
		}
		for range rapid.IntRange(1, 12).Draw(t, "services") {
			add()
		}
		pass := func() map[string]portGrant {
			out, seen, used := map[string]portGrant{}, map[int32]bool{}, map[peer.ID]int{}
			for s, g := range grantPorts(all, owner, within, own, busy) {
				out[s.Name] = g
				*s = *granted(s, g, netip.MustParseAddr("192.0.2.7"))
				if (g.reason == "") != (s.Spec.Type == corev1.ServiceTypeNodePort) {
					t.Fatalf("%+v has type %s", g, s.Spec.Type)
				}
				for i, p := range g.ports {
					if seen[p] || !within.Has(p) || ranges[owner(s.Namespace)].Last != 0 && !ranges[owner(s.Namespace)].Has(p) || busy[p] || s.Spec.Ports[i].NodePort != p {
						t.Fatalf("port %d of %s: %+v", p, s.Name, out)
					}
					seen[p] = true
				}
				used[owner(s.Namespace)] += len(g.ports)
			}
			for id, n := range used {
				if n > PortsEach {
					t.Fatalf("%s has %d", id, n)
				}
			}
			if len(out) != len(all) {
				t.Fatalf("%d of %d are decided", len(out), len(all))
			}
			return out
		}
		first := pass()
		if again := pass(); !maps.EqualFunc(first, again, func(a, b portGrant) bool { return slices.Equal(a.ports, b.ports) }) {
			t.Fatalf("%v became %v", first, again)
		}
		add() // the youngest takes nothing from the others
		for name, g := range pass() {
			if before, was := first[name]; was && !slices.Equal(g.ports, before.ports) {
				t.Fatalf("%s: %v became %v", name, before, g)
			}
		}
		within = Ports{}
		for name, g := range grantPorts(all, owner, within, own, busy) {
			if g.reason == "" {
				t.Fatalf("%s has %v of no range", name.Name, g)
			}
		}
	})
}

func TestAPortIsGivenAgain(t *testing.T) {
	one := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Protocol: "TCP"}}}}
	two := one.DeepCopy()
	two.Name = "two"
	owner := func(string) peer.ID { return "a" }
	own := func(peer.ID) Ports { return Ports{} }
	both := grantPorts([]*corev1.Service{one, two}, owner, Ports{First: 31000, Last: 31000}, own, nil)
	if both[one].reason != "" || both[two].reason == "" {
		t.Fatalf("%+v", both)
	}
	if g := grantPorts([]*corev1.Service{two}, owner, Ports{First: 31000, Last: 31000}, own, nil)[two]; g.reason != "" || g.ports[0] != 31000 {
		t.Errorf("%+v", g)
	}
	far := func(peer.ID) Ports { return Ports{First: 32000, Last: 32009} }
	if g := grantPorts([]*corev1.Service{one}, owner, Ports{First: 31000, Last: 31009}, far, nil)[one]; !strings.Contains(g.reason, "change spec.ports") {
		t.Errorf("%+v", g)
	}
}

// A virtual cluster gets ports of this cluster's choice, and takes no others; a peer gets none.
func testPortsOfTheLAN(t *testing.T, p *provider) {
	ctx := t.Context()
	p.Host(map[peer.ID]offer.Member{hosted: {}})
	defer p.Host(nil)
	wish := func(c kubernetes.Interface, twin, name string, change func(*corev1.Service)) error {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{policy.LANLabel: "true"}},
			Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}}
		if change != nil {
			change(s)
		}
		_, err := c.CoreV1().Services(twin).Create(ctx, s, metav1.CreateOptions{})
		return err
	}
	c, _ := p.consumer(t, hosted, nil)
	twin := p.twinOf(t, hosted, "lan")
	for what, change := range map[string]func(*corev1.Service){
		"a port of its choice": func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 31005 },
		"any port":             func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort },
		"a load balancer":      func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer },
		"a chosen address": func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerIP = corev1.ServiceTypeLoadBalancer, "192.0.2.9"
		},
		"external IPs": func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.9"} },
		"no selector":  func(s *corev1.Service) { s.Spec.Selector = nil },
		"an alias": func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "a.example"
		},
		"annotations": func(s *corev1.Service) { s.Annotations = map[string]string{"metallb.io/address-pool": "x"} },
	} {
		if err := wish(c, twin, policy.LANServicePrefix+"no", change); err == nil || !strings.Contains(err.Error(), "rivulet-twin-services") {
			t.Errorf("%s: %v, want refused", what, err)
		}
	}
	if err := wish(c, twin, policy.LANServicePrefix+"web", nil); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "it is opened", func() bool {
		s, err := c.CoreV1().Services(twin).Get(ctx, policy.LANServicePrefix+"web", metav1.GetOptions{})
		return err == nil && s.Spec.Type == corev1.ServiceTypeNodePort && (Ports{First: 31000, Last: 31019}).Has(s.Spec.Ports[0].NodePort) && s.Annotations[policy.LANAddressAnnotation] == "192.0.2.7"
	})
	for what, change := range map[string]func(*corev1.Service){
		"another port":          func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 32000 },
		"one port more":         func(s *corev1.Service) { s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "b", Port: 81}) },
		"another protocol":      func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP },
		"a load balancer":       func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer },
		"externalTrafficPolicy": func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal },
		"external IPs":          func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.9"} },
		"no selector":           func(s *corev1.Service) { s.Spec.Selector = nil },
	} {
		s, err := c.CoreV1().Services(twin).Get(ctx, policy.LANServicePrefix+"web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.Spec.Ports[0].Name = "a"
		change(s)
		if _, err := c.CoreV1().Services(twin).Update(ctx, s, metav1.UpdateOptions{}); err == nil || apierrors.IsConflict(err) {
			t.Errorf("%s: %v, want refused", what, err)
		}
	}
	port := int32(80)
	protocol := corev1.ProtocolTCP
	_, err := c.DiscoveryV1().EndpointSlices(twin).Create(ctx, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "e", Labels: map[string]string{discoveryv1.LabelServiceName: policy.LANServicePrefix + "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: &protocol}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}}}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "rivulet-twin-endpoints") {
		t.Errorf("endpoints of its own: %v, want refused", err)
	}
	// More than its most: the youngest is refused, with the reason.
	for i := range PortsEach {
		if err := wish(c, twin, fmt.Sprint(policy.LANServicePrefix, i), nil); err != nil {
			t.Fatal(err)
		}
	}
	await.True(t, time.Minute, "it has its most, and no more", func() bool {
		list, err := c.CoreV1().Services(twin).List(ctx, metav1.ListOptions{LabelSelector: policy.LANLabel})
		open, refused := 0, 0
		for _, s := range list.Items {
			if s.Spec.Type == corev1.ServiceTypeNodePort {
				open++
			} else if strings.Contains(s.Annotations[policy.LANRefusedAnnotation], "at most") {
				refused++
			}
		}
		return err == nil && open == PortsEach && refused == 1
	})
	// A peer's is never opened; when the first is looked at again, it was seen.
	peers, _ := p.consumer(t, bob, nil)
	other := p.twinOf(t, bob, "lan")
	if err := wish(peers, other, policy.LANServicePrefix+"web", nil); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().Services(twin).Delete(ctx, policy.LANServicePrefix+"web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "the last has the port that is free", func() bool {
		list, err := c.CoreV1().Services(twin).List(ctx, metav1.ListOptions{LabelSelector: policy.LANLabel})
		return err == nil && !slices.ContainsFunc(list.Items, func(s corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeNodePort })
	})
	if s, err := peers.CoreV1().Services(other).Get(ctx, policy.LANServicePrefix+"web", metav1.GetOptions{}); err != nil || s.Spec.Type != corev1.ServiceTypeClusterIP || len(s.Annotations) > 0 {
		t.Errorf("a peer's: %v %+v", err, s)
	}
	for _, ns := range []string{twin, other} {
		if err := p.admin.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}

const hosted peer.ID = "hostedaaaaaaaaaaaaaaaaaaaaaaaaaa"
