package networkpolicy

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

// The compiled plan lets exactly those packets through that the reference does.
func TestCompileMeansWhatPoliciesSay(t *testing.T) {
	passed, dropped := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		plan := Compile(w)
		packets(w, func(k packet) {
			got, want := plan.passes(k), allowed(w, k)
			if got != want {
				t.Fatalf("%+v passes: %v, want %v\n%+v\n%+v", k, got, want, w, plan)
			}
			if want {
				passed++
			} else {
				dropped++
			}
		})
	})
	if dropped == 0 || passed == 0 {
		t.Errorf("%d packets passed, %d were dropped: the worlds prove nothing", passed, dropped)
	}
}

// The order in which an API server lists things is nobody's business, and the same
// world has the same names: else tables would be rewritten for nothing.
func TestCompileIsOrderly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		other := World{Namespaces: w.Namespaces, Peers: w.Peers, Pods: rapid.Permutation(w.Pods).Draw(t, "pods"), Policies: rapid.Permutation(w.Policies).Draw(t, "policies")}
		if a, b := Compile(w), Compile(other); !reflect.DeepEqual(a, b) {
			t.Fatalf("%+v\n%+v", a, b)
		}
	})
}

// A pod that gets another address changes elements, no chain and no class; nor does one
// that comes with labels that others have already.
func TestAddressesChangeElementsOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		// An address in no block, before and after.
		w.Pods[0].Addr = netip.MustParseAddr("10.99.0.1")
		for _, p := range w.Policies {
			p.Spec = withoutBlocks(p.Spec)
		}
		before := Compile(w)
		w.Pods = slices.Clone(w.Pods)
		w.Pods[0].Addr = netip.MustParseAddr("10.99.0.2")
		twin := w.Pods[0]
		twin.Name, twin.Addr = "twin", netip.MustParseAddr("10.99.0.3")
		w.Pods = append(w.Pods, twin)
		after := Compile(w)
		if !reflect.DeepEqual(before.Chains, after.Chains) || !reflect.DeepEqual(before.Classes, after.Classes) {
			t.Fatalf("%+v\n%+v", before, after)
		}
	})
}

func withoutBlocks(s networkingv1.NetworkPolicySpec) networkingv1.NetworkPolicySpec {
	block := func(p networkingv1.NetworkPolicyPeer) bool { return p.IPBlock != nil }
	for i := range s.Ingress {
		s.Ingress[i].From = slices.DeleteFunc(s.Ingress[i].From, block)
	}
	for i := range s.Egress {
		s.Egress[i].To = slices.DeleteFunc(s.Egress[i].To, block)
	}
	return s
}

// What is not there, or not understood, opens nothing.
func TestNothingOpensByMistake(t *testing.T) {
	pod := Pod{Namespace: "lab", Name: "p", Addr: netip.MustParseAddr("10.42.0.1")}
	bad := intstr.FromInt32(0)
	for name, from := range map[string]networkingv1.NetworkPolicyIngressRule{
		"an empty peer":          {From: []networkingv1.NetworkPolicyPeer{{}}},
		"a broken block":         {From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.42.0.0"}}}},
		"a block of IPv6":        {From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "::/0"}}}},
		"a broken selector":      {From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}}}},
		"a port that is no port": {Ports: []networkingv1.NetworkPolicyPort{{Port: &bad}}},
	} {
		w := World{Namespaces: map[string]labels.Set{"lab": nil}, Pods: []Pod{pod, {Namespace: "lab", Name: "q", Addr: netip.MustParseAddr("10.42.0.2")}},
			Policies: []*networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: "lab"}, Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{from}}}}}
		if Compile(w).passes(packet{w.Pods[1].Addr, pod.Addr, corev1.ProtocolTCP, 80}) {
			t.Errorf("%s opens the pod", name)
		}
	}
}

// A policy that was resolved says on the other cluster what it said at home: of its own
// pods there, for pods and for the rest of the world.
func TestResolveSaysTheSame(t *testing.T) {
	theirs := netip.MustParsePrefix("10.70.0.0/24")  // how the other sees our pods
	already := netip.MustParsePrefix("10.42.0.0/24") // and its own, where ours run
	checked := 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		if len(w.Policies) == 0 {
			return
		}
		p := w.Policies[0]
		away := map[netip.Addr]bool{}
		for _, pod := range w.Pods {
			away[pod.Addr] = rapid.Bool().Draw(t, "runs away")
		}
		lost := w.Pods[rapid.IntRange(0, len(w.Pods)-1).Draw(t, "beyond reach")].Addr
		there := func(a netip.Addr) (netip.Addr, bool) {
			b := a.As4()
			switch {
			case a == lost && !away[a]:
				return netip.Addr{}, false
			case away[a]:
				return netip.AddrFrom4([4]byte{10, 42, 0, 100 + b[3]}), true // others than at home
			}
			return netip.AddrFrom4([4]byte{10, 70, 0, b[3]}), true
		}
		spec := Resolve(p, w, View{Away: there, Pods: []netip.Prefix{theirs, already}})
		provider := World{Namespaces: map[string]labels.Set{"twin": nil}, Peers: []netip.Prefix{theirs}, Policies: []*networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "twin"}, Spec: spec}}}
		home := World{Namespaces: w.Namespaces, Pods: w.Pods, Peers: w.Peers, Policies: w.Policies[:1]}
		for _, pod := range w.Pods {
			if a, ok := there(pod.Addr); ok && away[pod.Addr] {
				twin := pod
				twin.Namespace, twin.Addr = "twin-of-"+pod.Namespace, a
				if pod.Namespace == p.Namespace {
					twin.Namespace = "twin"
				}
				provider.Pods = append(provider.Pods, twin)
			}
		}
		others := map[netip.Addr]netip.Addr{} // home's view to the other's
		for _, pod := range w.Pods {
			if a, ok := there(pod.Addr); ok {
				others[pod.Addr] = a
			}
		}
		for _, world := range []string{"192.0.2.1", "192.0.2.200", "203.0.113.1", "255.255.255.255"} {
			others[netip.MustParseAddr(world)] = netip.MustParseAddr(world)
		}
		for _, pod := range w.Pods {
			if pod.Namespace != p.Namespace || !away[pod.Addr] {
				continue
			}
			for h, o := range others {
				if h == pod.Addr {
					continue
				}
				for _, proto := range someProtocols {
					for _, port := range somePorts {
						in, inThere := packet{h, pod.Addr, proto, port}, packet{o, others[pod.Addr], proto, port}
						out, outThere := packet{pod.Addr, h, proto, port}, packet{others[pod.Addr], o, proto, port}
						checked++
						if got, want := sideAllows(provider, inThere.dst, false, inThere), sideAllows(home, in.dst, false, in); got != want {
							t.Fatalf("in: %+v there %+v: %v, want %v\n%+v\n%+v", in, inThere, got, want, p.Spec, spec)
						}
						if got, want := sideAllows(provider, outThere.src, true, outThere), sideAllows(home, out.src, true, out); got != want {
							t.Fatalf("out: %+v there %+v: %v, want %v\n%+v\n%+v", out, outThere, got, want, p.Spec, spec)
						}
					}
				}
			}
		}
	})
	if checked == 0 {
		t.Error("no packet was looked at")
	}
}

// Lists of private networks, as manifests that are passed around have them, name no peers: "the Internet
// only" and "not from pods" mean at home and away what they mean without peers.
func TestABlockMeansNoPodsOnPeers(t *testing.T) {
	home, own := netip.MustParseAddr("10.42.0.1"), netip.MustParseAddr("10.42.0.9") // the second at the provider
	peers := []netip.Prefix{netip.MustParsePrefix("240.0.0.0/5")}
	there := func(a netip.Addr) (netip.Addr, bool) {
		b := a.As4()
		if b[0] == 240 {
			return netip.AddrFrom4([4]byte{10, 42, b[2], b[3]}), true
		}
		return netip.AddrFrom4([4]byte{241, 7, b[2], b[3]}), true
	}
	pod := func(ns, addr string) Pod {
		return Pod{Namespace: ns, Name: addr, UID: addr, Labels: labels.Set{"app": ns}, Addr: netip.MustParseAddr(addr)}
	}
	internet := netip.MustParseAddr("203.0.113.1")
	for name, c := range map[string]struct {
		cidr   string
		except []string
		peers  bool // pods on peers are meant
	}{
		"private networks":          {"0.0.0.0/0", []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"}, false},
		"and link-local and shared": {"0.0.0.0/0", []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "127.0.0.0/8"}, false},
		"the cluster's networks":    {"0.0.0.0/0", []string{"10.42.0.0/16", "10.43.0.0/16"}, false},
		"metadata only":             {"0.0.0.0/0", []string{"169.254.169.254/32", "10.42.0.0/16"}, false},
		"all of class E":            {"240.0.0.0/4", nil, false},
		"the peers' range":          {"240.0.0.0/5", nil, true},
		"one peer's prefix":         {"240.3.0.0/16", nil, true},
	} {
		for _, d := range []direction{ingress, egress} {
			peer := []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: c.cidr, Except: c.except}}}
			p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "n"}}
			if d == ingress {
				p.Spec.PolicyTypes, p.Spec.Ingress = []networkingv1.PolicyType{"Ingress"}, []networkingv1.NetworkPolicyIngressRule{{From: peer}}
			} else {
				p.Spec.PolicyTypes, p.Spec.Egress = []networkingv1.PolicyType{"Egress"}, []networkingv1.NetworkPolicyEgressRule{{To: peer}}
			}
			w := World{Namespaces: map[string]labels.Set{"lab": nil, "other": nil}, Peers: peers, Policies: []*networkingv1.NetworkPolicy{p},
				Pods: []Pod{pod("lab", "10.42.0.1"), pod("lab", "240.3.0.9"), pod("other", "240.3.0.5")}}
			between := func(held, other netip.Addr) packet {
				if d == ingress {
					return packet{other, held, corev1.ProtocolTCP, 80}
				}
				return packet{held, other, corev1.ProtocolTCP, 80}
			}
			if got := Compile(w).passes(between(home, netip.MustParseAddr("240.3.0.5"))); got != c.peers {
				t.Errorf("%s, %d: at home a pod of another namespace on a peer passes: %v", name, d, got)
			}
			if got := Compile(w).passes(between(home, internet)); got != (c.cidr == "0.0.0.0/0") {
				t.Errorf("%s, %d: at home the Internet passes: %v", name, d, got)
			}
			// At the provider: a pod of the other namespace, one of the provider's, pods of its peers.
			spec := Resolve(p, w, View{Away: there, Pods: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("241.7.0.0/16")}})
			twin := World{Namespaces: map[string]labels.Set{"lab-a": nil, "other-a": nil, "x": nil}, Peers: peers, Pods: []Pod{pod("lab-a", own.String()), pod("other-a", "10.42.0.5"), pod("x", "10.42.0.6")},
				Policies: []*networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "lab-a", Name: "n"}, Spec: spec}}}
			for addr, want := range map[string]bool{"10.42.0.5": c.peers, "10.42.0.6": false, "240.3.0.5": false, "245.1.0.1": false, internet.String(): c.cidr == "0.0.0.0/0"} {
				if got := Compile(twin).passes(between(own, netip.MustParseAddr(addr))); got != want {
					t.Errorf("%s, %d: away %s passes: %v\n%+v", name, d, addr, got, spec)
				}
			}
		}
	}
}

// What a node's pods may always do they may away, too.
func TestResolveKeepsTheNodeAndDNS(t *testing.T) {
	deny := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny", Namespace: "lab"},
		Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress", "Egress"}}}
	spec := Resolve(deny, World{}, View{Away: func(a netip.Addr) (netip.Addr, bool) { return a.Next(), true }, Node: netip.MustParseAddrPort("10.42.255.253:7442")})
	if len(spec.Ingress) != 1 || spec.Ingress[0].From[0].IPBlock.CIDR != "10.42.255.254/32" || spec.Ingress[0].Ports != nil {
		t.Errorf("ingress %+v", spec.Ingress)
	}
	if len(spec.Egress) != 2 || spec.Egress[0].To[0].IPBlock.CIDR != "10.42.255.254/32" || spec.Egress[0].Ports[0].Port.IntVal != 7442 || spec.Egress[1].Ports[0].Port.IntVal != 53 {
		t.Errorf("egress %+v", spec.Egress)
	}
	spec = Resolve(deny, World{}, View{Away: func(netip.Addr) (netip.Addr, bool) { return netip.Addr{}, false }})
	if len(spec.Ingress) != 0 || len(spec.Egress) != 1 {
		t.Errorf("without a way home: %+v", spec)
	}
}

func TestPrefixesCoverRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r ranges
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			first := rapid.Uint32().Draw(t, "first")
			r = append(r, span{first, first + min(rapid.Uint32Range(0, 1<<20).Draw(t, "size"), ^uint32(0)-first)})
		}
		want := slices.Clone(r)
		r = slices.Clone(r).merged()
		var back ranges
		for _, p := range r.prefixes() {
			back = append(back, spanOf(p))
		}
		if back = back.merged(); !slices.Equal(back, r) {
			t.Fatalf("%v, want %v", back, r)
		}
		for _, s := range want {
			for _, n := range []uint32{s.first, s.last, s.first + (s.last-s.first)/2} {
				if !r.contains(address(n)) {
					t.Fatalf("%v lacks %s", r, address(n))
				}
			}
		}
		not := span{rapid.Uint32().Draw(t, "from"), 0}
		not.last = not.first + min(rapid.Uint32Range(0, 1<<24).Draw(t, "wide"), ^uint32(0)-not.first)
		if left := r.without(not); left.contains(address(not.first)) || left.contains(address(not.last)) {
			t.Fatalf("%v without %v is %v", r, not, left)
		}
	})
	if got := (ranges{{0, ^uint32(0)}}).prefixes(); len(got) != 1 || got[0].String() != "0.0.0.0/0" {
		t.Error(got)
	}
}

// big is a busy lab: n pods in ten namespaces, n policies.
func big(n int) World {
	w := World{Namespaces: map[string]labels.Set{}}
	for i := range 10 {
		w.Namespaces[fmt.Sprint("ns", i)] = labels.Set{"team": fmt.Sprint(i % 3)}
	}
	for i := range n {
		w.Pods = append(w.Pods, Pod{Namespace: fmt.Sprint("ns", i%10), Name: fmt.Sprint("p", i), UID: fmt.Sprint(i),
			Labels: labels.Set{"app": fmt.Sprint(i % 20), "tier": fmt.Sprint(i % 4)}, Addr: address(0x0a2a0000 + uint32(i)),
			Ports: []Port{{"http", corev1.ProtocolTCP, 8080}}})
		http, port := intstr.FromString("http"), intstr.FromInt32(int32(1000+i))
		w.Policies = append(w.Policies, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns", i%10), Name: fmt.Sprint("n", i)},
			Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"tier": fmt.Sprint(i % 4)}},
				PolicyTypes: []networkingv1.PolicyType{"Ingress", "Egress"},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
					{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i % 20)}}},
					{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprint(i % 3)}}}},
					Ports: []networkingv1.NetworkPolicyPort{{Port: &http}, {Port: &port}}}},
				Egress: []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"10.0.0.0/8"}}}}}},
			}})
	}
	return w
}

// 200 policies and 200 pods.
func BenchmarkCompile(b *testing.B) {
	w := big(200)
	b.ReportAllocs()
	for b.Loop() {
		if Compile(w).Empty() {
			b.Fatal("nobody is held")
		}
	}
}
