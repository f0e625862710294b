package networkpolicy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Plan is the program of a packet filter. A new connection is accepted if both sides accept it:
//
//	source      ─▶ Egress[source]       ─▶ class ─▶ its chains, one after another ─┐
//	destination ─▶ Ingress[destination] ─▶ class ─▶ its chains                     │
//	  no class: accepted                   no rule of any chain accepts: dropped ◀─┘
//
// Names of chains, classes and ranges are derived from their content, so the same name in two plans is the same
// content. Other sets keep their names while their content changes: a new, removed or moved pod changes elements only.
type Plan struct {
	// Ingress and Egress have the class of each pod that a policy selects.
	Ingress, Egress map[netip.Addr]string
	// Classes are the chains of one kind of pod: sorted, immutable.
	Classes map[string][]string
	// Chains have the rules of one policy in one direction: any that matches accepts.
	Chains map[string][]Rule
	Sets   Sets
}

// Sets of a plan, by name; elements are sorted and disjoint.
type Sets struct {
	Addrs   map[string][]netip.Addr
	Ranges  map[string][]Range
	Sockets map[string][]Socket
}

// Socket is a port of a pod.
type Socket struct {
	Addr     netip.Addr
	Protocol corev1.Protocol
	Port     uint16
}

// Rule accepts a connection if its other end is in the set Peers (of Addrs or of Ranges; "" is anything) and its
// destination port matches: Protocol ("" is any) and Low to High (0 is all ports), or the set Sockets.
type Rule struct {
	Peers     string
	Protocol  corev1.Protocol
	Low, High uint16
	Sockets   string
}

// Names of chains begin with the direction of their rules.
const InPrefix, OutPrefix = "in-", "out-"

// Empty reports whether no pod is selected.
func (p Plan) Empty() bool { return len(p.Ingress) == 0 && len(p.Egress) == 0 }

// compiler evaluates one world. Its caches are valid for that world only.
type compiler struct {
	world World
	plan  Plan
	// byNamespace are the pods of each, peers the result of a set of selectors.
	byNamespace map[string][]int
	peers       map[string][]int
	namespaces  map[string][]string // by selector
	all         []int
}

// Compile translates the world's policies.
func Compile(w World) Plan {
	c := newCompiler(w)
	held := map[direction]map[int][]string{ingress: {}, egress: {}} // chains by pod
	for _, p := range w.Policies {
		for d := range held {
			rs, holds := rules(p, d)
			if !holds {
				continue
			}
			pods := c.selected(p.Namespace, selector(&p.Spec.PodSelector))
			if len(pods) == 0 {
				continue // no cost before it selects a pod
			}
			chain := c.chain(p, d, rs, pods)
			for _, pod := range pods {
				held[d][pod] = append(held[d][pod], chain)
			}
		}
	}
	for d, classes := range map[direction]map[netip.Addr]string{ingress: c.plan.Ingress, egress: c.plan.Egress} {
		for pod, chains := range held[d] {
			slices.Sort(chains)
			chains = slices.Compact(chains)
			name := "pods-" + hash(chains...)
			c.plan.Classes[name] = chains
			classes[w.Pods[pod].Addr] = name
		}
	}
	return c.plan
}

func newCompiler(w World) compiler {
	c := compiler{world: w, byNamespace: map[string][]int{}, peers: map[string][]int{}, namespaces: map[string][]string{},
		plan: Plan{Ingress: map[netip.Addr]string{}, Egress: map[netip.Addr]string{}, Classes: map[string][]string{}, Chains: map[string][]Rule{},
			Sets: Sets{Addrs: map[string][]netip.Addr{}, Ranges: map[string][]Range{}, Sockets: map[string][]Socket{}}}}
	c.index()
	return c
}

// index sorts the pods by namespace: those with an address, and of several with the same one the first.
func (c *compiler) index() {
	taken := map[netip.Addr]bool{}
	for i, p := range c.world.Pods {
		if p.Addr.Is4() && !taken[p.Addr] {
			taken[p.Addr] = true
			c.byNamespace[p.Namespace] = append(c.byNamespace[p.Namespace], i)
			c.all = append(c.all, i)
		}
	}
}

func (c *compiler) selected(namespace string, s labels.Selector) []int {
	var out []int
	for _, i := range c.byNamespace[namespace] {
		if s.Matches(c.world.Pods[i].Labels) {
			out = append(out, i)
		}
	}
	return out
}

// chain writes the rules of one policy and returns their name.
func (c *compiler) chain(p *networkingv1.NetworkPolicy, d direction, rs []rule, held []int) string {
	var out []Rule
	for _, r := range rs {
		out = append(out, c.rule(p, d, r, held)...)
	}
	words := []string{fmt.Sprint(d)}
	for _, r := range out {
		words = append(words, fmt.Sprintf("%+v", r))
	}
	side := InPrefix
	if d == egress {
		side = OutPrefix
	}
	// The policy's name helps readers of the kernel's rules.
	name := fmt.Sprintf("%s%.40s-%.60s-%s", side, p.Namespace, p.Name, hash(words...))
	c.plan.Chains[name] = out
	return name
}

// rule is one rule of a policy: each of its peers with each of its ports.
func (c *compiler) rule(p *networkingv1.NetworkPolicy, d direction, r rule, held []int) []Rule {
	from := []string{""}
	key, pods, spans := c.resolve(p.Namespace, r.peers)
	if len(r.peers) > 0 {
		from = nil
		if key != "" {
			name := "pods-" + hash(key)
			c.plan.Sets.Addrs[name] = c.addresses(pods)
			from = append(from, name)
		}
		if len(spans) > 0 {
			name := "blocks-" + hash(fmt.Sprint(spans))
			c.plan.Sets.Ranges[name] = spans.public()
			from = append(from, name)
		}
	}
	if len(r.ports) == 0 {
		var out []Rule
		for _, peers := range from {
			out = append(out, Rule{Peers: peers})
		}
		return out
	}
	var out []Rule
	for _, port := range r.ports {
		proto := protocol(port.Protocol)
		if port.Port != nil && port.Port.Type == intstr.String {
			// A port name has a different number on each pod: on the selected pods for ingress, on the peers for
			// egress.
			on, whose, peers := held, "held:"+p.Namespace+":"+metav1.FormatLabelSelector(&p.Spec.PodSelector), from
			if d == egress {
				on, whose, peers = c.within(r.peers, pods, spans), fmt.Sprint("peers:", len(r.peers) == 0, key, spans), []string{""}
			}
			name := "ports-" + hash(whose, string(proto), port.Port.StrVal)
			c.plan.Sets.Sockets[name] = c.sockets(on, proto, port.Port.StrVal)
			for _, set := range peers {
				out = append(out, Rule{Peers: set, Sockets: name})
			}
			continue
		}
		one := Rule{Protocol: proto}
		if port.Port != nil {
			low := port.Port.IntVal
			high := low
			if port.EndPort != nil {
				high = *port.EndPort
			}
			if low < 1 || high > 65535 || high < low {
				continue // nothing matches
			}
			one.Low, one.High = uint16(low), uint16(high)
		}
		for _, one.Peers = range from {
			out = append(out, one)
		}
	}
	return out
}

// resolve splits peers: pods by their selectors, with a stable key, and blocks of addresses. The key is "" without any
// selector.
func (c *compiler) resolve(own string, peers []networkingv1.NetworkPolicyPeer) (key string, pods []int, spans ranges) {
	var ips []networkingv1.IPBlock
	var keys []string
	for _, p := range peers {
		if p.IPBlock != nil {
			ips = append(ips, *p.IPBlock)
			continue
		}
		if p.PodSelector == nil && p.NamespaceSelector == nil {
			continue // empty: matches nothing
		}
		k := c.peer(own, p)
		keys = append(keys, k)
		pods = append(pods, c.peers[k]...)
	}
	slices.Sort(keys)
	slices.Sort(pods)
	return strings.Join(slices.Compact(keys), " | "), slices.Compact(pods), blocks(ips, c.world.Peers)
}

// peer evaluates the selectors of one peer, once for all policies with the same ones.
func (c *compiler) peer(own string, p networkingv1.NetworkPolicyPeer) (key string) {
	where, names := "in "+own, []string{own}
	if p.NamespaceSelector != nil {
		s := selector(p.NamespaceSelector)
		where = "where " + words(s)
		names = c.namespacesOf(s, where)
	}
	which := labels.Everything()
	if p.PodSelector != nil {
		which = selector(p.PodSelector)
	}
	key = where + " pods " + words(which)
	if _, known := c.peers[key]; known {
		return key
	}
	pods := []int{}
	for _, n := range names {
		pods = append(pods, c.selected(n, which)...)
	}
	c.peers[key] = pods
	return key
}

// words are equal exactly for selectors that select the same.
func words(s labels.Selector) string {
	if text := s.String(); text != "" || s.Empty() {
		return text
	}
	return "none"
}

func (c *compiler) namespacesOf(s labels.Selector, key string) []string {
	names, known := c.namespaces[key]
	if !known {
		for _, name := range slices.Sorted(maps.Keys(c.world.Namespaces)) {
			if s.Matches(c.world.Namespaces[name]) {
				names = append(names, name)
			}
		}
		c.namespaces[key] = names
	}
	return names
}

// within are the pods that peers select, including those with addresses in blocks.
func (c *compiler) within(peers []networkingv1.NetworkPolicyPeer, pods []int, spans ranges) []int {
	out := slices.Clone(pods)
	for _, i := range c.all {
		if len(peers) == 0 || spans.contains(c.world.Pods[i].Addr) {
			out = append(out, i)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (c *compiler) addresses(pods []int) []netip.Addr {
	out := []netip.Addr{}
	for _, i := range pods {
		out = append(out, c.world.Pods[i].Addr)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

func (c *compiler) sockets(pods []int, proto corev1.Protocol, name string) []Socket {
	out := []Socket{}
	for _, i := range pods {
		for _, p := range c.world.Pods[i].Ports {
			if p.Name == name && p.Protocol == proto {
				out = append(out, Socket{c.world.Pods[i].Addr, proto, p.Number})
			}
		}
	}
	slices.SortFunc(out, func(a, b Socket) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(out)
}

// hash is short, and long enough that collisions do not occur.
func hash(words ...string) string {
	h := sha256.New()
	for _, w := range words {
		fmt.Fprintf(h, "%d:%s", len(w), w)
	}
	return hex.EncodeToString(h.Sum(nil)[:10])
}
