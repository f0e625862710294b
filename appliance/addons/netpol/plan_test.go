package netpol

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"rivulet/fabric/nft"
	"rivulet/offload/networkpolicy"
	"rivulet/offload/nodeagent/podnet"
	"rivulet/test/harness/testns"
)

// The container network is right about addresses; what it does not know the API server
// says; nobody has an address that is another's.
func TestOverlay(t *testing.T) {
	a, b := netip.MustParseAddr("10.42.0.1"), netip.MustParseAddr("10.42.0.2")
	away := netip.MustParseAddr("10.77.0.1")
	e := &enforcer{known: map[string]networkpolicy.Pod{}}
	w := networkpolicy.World{Pods: []networkpolicy.Pod{{UID: "new", Name: "new"}, {UID: "ending", Name: "ending", Addr: a}, {UID: "away", Name: "away", Addr: away}}}
	local := []podnet.Pod{{UID: "new", Addr: a}}
	addrs := func(w networkpolicy.World) map[string]netip.Addr {
		out := map[string]netip.Addr{}
		for _, p := range w.Pods {
			out[p.Name] = p.Addr
		}
		return out
	}
	if got, want := addrs(e.overlay(w, local)), (map[string]netip.Addr{"new": a, "ending": {}, "away": away}); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if w.Pods[0].Addr.IsValid() {
		t.Error("the shared world was changed")
	}
	// Forgotten by the API server, still there.
	local[0].Addr = b
	if got, want := addrs(e.overlay(networkpolicy.World{}, local)), (map[string]netip.Addr{"new": b}); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := addrs(e.overlay(networkpolicy.World{}, nil)); len(got) != 0 || len(e.known) != 0 {
		t.Errorf("%v %v", got, e.known)
	}
}

// Every step from one set of policies to another, in place, is what making all anew is.
func TestStepsAreWhatTheWholeIs(t *testing.T) {
	room := testns.New(t)
	k := tables(int(room.NS))
	pod := func(ns, name string, n byte) networkpolicy.Pod {
		return networkpolicy.Pod{Namespace: ns, Name: name, UID: name, Labels: labels.Set{"app": name}, Addr: netip.AddrFrom4([4]byte{10, 42, 0, n})}
	}
	from := func(p networkingv1.NetworkPolicyPeer) []networkingv1.NetworkPolicyIngressRule {
		return []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{p}}}
	}
	block := func(cidr string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: []string{"255.255.255.255/32"}}}
	}
	a := policy("a", *app("a"), from(networkingv1.NetworkPolicyPeer{PodSelector: app("b")}), nil, "Ingress")
	b := policy("b", metav1.LabelSelector{}, from(block("128.0.0.0/1")), nil, "Ingress")
	c := policy("c", *app("b"), from(block("0.0.0.0/0")), []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{PodSelector: app("a")}}}}, "Ingress", "Egress")
	worlds := []networkpolicy.World{
		{Pods: []networkpolicy.Pod{pod("lab", "a", 1), pod("lab", "b", 2)}, Policies: []*networkingv1.NetworkPolicy{a}},
		{Pods: []networkpolicy.Pod{pod("lab", "a", 1), pod("lab", "b", 3)}, Policies: []*networkingv1.NetworkPolicy{a, b}},
		{Pods: []networkpolicy.Pod{pod("lab", "a", 2), pod("lab", "b", 1)}, Policies: []*networkingv1.NetworkPolicy{b, c}},
		{Pods: []networkpolicy.Pod{pod("lab", "b", 1)}, Policies: []*networkingv1.NetworkPolicy{a, b, c}},
		{Pods: []networkpolicy.Pod{pod("lab", "a", 1), pod("lab", "b", 2)}, Policies: []*networkingv1.NetworkPolicy{a}},
	}
	for i, w := range worlds {
		want := write(networkpolicy.Compile(w), nil)
		before := k.Known()
		if i == 0 {
			_, err := k.Apply(want)
			if err != nil {
				t.Fatal(err)
			}
		} else {
			_, err := k.Update(want)
			if !before || err != nil {
				t.Fatalf("step %d was not made in place: %v", i, err)
			}
		}
		step := dump(t, k.NetNS)
		anew := tables(k.NetNS)
		if _, err := anew.Apply(want); err != nil {
			t.Fatal(err)
		}
		if whole := dump(t, k.NetNS); !reflect.DeepEqual(step, whole) {
			t.Fatalf("step %d:\n%v\nmade anew:\n%v", i, step, whole)
		}
	}
	if err := k.Clear(); err != nil {
		t.Fatal(err)
	}
	if n, err := nft.Stand(k.NetNS, Table, families...); n != 0 || err != nil {
		t.Errorf("%d tables are left, %v", n, err)
	}
}

func tables(netns int) *nft.Tables {
	return &nft.Tables{Name: Table, Families: families, NetNS: netns}
}

// dump is what the kernel says stands, by chain and set.
func dump(t *testing.T, netns int) map[string]int {
	t.Helper()
	c, err := nft.Open(netns)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		chains, err := c.ListChainsOfTableFamily(table.Family)
		if err != nil {
			t.Fatal(err)
		}
		for _, chain := range chains {
			rules, err := c.GetRules(table, chain)
			if err != nil {
				t.Fatal(err)
			}
			out[fmt.Sprint(table.Family, " chain ", chain.Name)] = len(rules)
		}
		sets, err := c.GetSets(table)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sets {
			elements, err := c.GetSetElements(s)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range elements {
				verdict := ""
				if e.VerdictData != nil {
					verdict = e.VerdictData.Chain
				}
				out[fmt.Sprintf("%v set %s %x %v %s", table.Family, s.Name, e.Key, e.IntervalEnd, verdict)] = len(elements)
			}
		}
	}
	return out
}

// The kernel takes 200 policies for 200 pods, whole and one pod's change.
func BenchmarkApply(b *testing.B) {
	room := testns.New(b)
	var w networkpolicy.World
	for i := range 200 {
		app := fmt.Sprint(i % 20)
		w.Pods = append(w.Pods, networkpolicy.Pod{Namespace: "lab", Name: fmt.Sprint(i), Labels: labels.Set{"app": app, "tier": fmt.Sprint(i % 4)}, Addr: netip.AddrFrom4([4]byte{10, 42, byte(i >> 8), byte(i)})})
		p := policy(fmt.Sprint(i), metav1.LabelSelector{MatchLabels: map[string]string{"tier": fmt.Sprint(i % 4)}},
			[]networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}}}, nil, "Ingress")
		w.Policies = append(w.Policies, p)
	}
	b.Run("whole", func(b *testing.B) {
		for b.Loop() {
			k := tables(int(room.NS))
			if _, err := k.Apply(write(networkpolicy.Compile(w), nil)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("one address", func(b *testing.B) {
		k := tables(int(room.NS))
		n := 0
		for b.Loop() {
			n++
			w.Pods[7].Addr = netip.AddrFrom4([4]byte{10, 43, byte(n >> 8), byte(n)})
			messages, err := k.Apply(write(networkpolicy.Compile(w), nil))
			if err != nil || n > 1 && messages > 10 {
				b.Fatal(messages, err)
			}
		}
	})
}

func TestTry(t *testing.T) {
	testns.New(t).Do(Try)
}
