package networkpolicy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// View translates addresses to those of another cluster.
type View struct {
	// Away translates the address of a pod; false if the other cluster cannot reach it.
	Away func(netip.Addr) (netip.Addr, bool)
	// Pods are the prefixes in which the other cluster has pods, of any owner. An ipBlock of home does not apply there:
	// pods in it are listed one by one.
	Pods []netip.Prefix
	// Node is the address of this cluster's own node behind the tunnel, with its API server's port for pods away; not
	// valid without one.
	Node netip.AddrPort
}

// Resolve translates a policy for the pods of its namespace that run on the other cluster, with peers in that cluster's
// view: only ipBlocks, no pods or namespaces.
//
// A policy cannot deny what a node's own pods may always do, and away this needs explicit rules: the home node may
// connect, and home's API server and cluster DNS are reachable. (LAN clients of home's Services come from the home node
// as well: home has applied the policy to them.)
func Resolve(p *networkingv1.NetworkPolicy, w World, v View) networkingv1.NetworkPolicySpec {
	c := newCompiler(w)
	out := networkingv1.NetworkPolicySpec{PodSelector: *p.Spec.PodSelector.DeepCopy(), PolicyTypes: []networkingv1.PolicyType{}}
	var node netip.Addr
	reached := v.Node.IsValid()
	if reached {
		node, reached = v.Away(v.Node.Addr())
	}
	if rs, held := rules(p, ingress); held {
		out.PolicyTypes = append(out.PolicyTypes, networkingv1.PolicyTypeIngress)
		for _, r := range rs {
			if peers, any := c.away(p.Namespace, r, v); any || len(peers) > 0 {
				out.Ingress = append(out.Ingress, networkingv1.NetworkPolicyIngressRule{From: peers, Ports: copied(r.ports)})
			}
		}
		if reached {
			out.Ingress = append(out.Ingress, networkingv1.NetworkPolicyIngressRule{From: ipBlocks([]netip.Prefix{netip.PrefixFrom(node, 32)})})
		}
	}
	if rs, held := rules(p, egress); held {
		out.PolicyTypes = append(out.PolicyTypes, networkingv1.PolicyTypeEgress)
		for _, r := range rs {
			out.Egress = append(out.Egress, c.awayEgress(p.Namespace, r, v)...)
		}
		if reached {
			port := intstr.FromInt32(int32(v.Node.Port()))
			out.Egress = append(out.Egress, networkingv1.NetworkPolicyEgressRule{To: ipBlocks([]netip.Prefix{netip.PrefixFrom(node, 32)}),
				Ports: []networkingv1.NetworkPolicyPort{{Protocol: proto(corev1.ProtocolTCP), Port: &port}}})
		}
		out.Egress = append(out.Egress, clusterDNS())
	}
	return out
}

// away are the peers of a rule; any is true if it lists none and so matches all.
func (c *compiler) away(own string, r rule, v View) (peers []networkingv1.NetworkPolicyPeer, any bool) {
	if len(r.peers) == 0 {
		return nil, true
	}
	_, pods, spans := c.resolve(own, r.peers)
	pods = c.within(r.peers, pods, spans)
	spans = spans.outside(v.Pods).outside(c.world.Peers)
	return ipBlocks(append(spans, c.spansAway(pods, v)...).merged().prefixes()), false
}

func (c *compiler) spansAway(pods []int, v View) ranges {
	var out ranges
	for _, i := range pods {
		if a, ok := v.Away(c.world.Pods[i].Addr); ok && a.Is4() {
			out = append(out, span{number(a), number(a)})
		}
	}
	return out
}

// awayEgress also translates port names to numbers: the other cluster does not have the names on pods elsewhere. Peers
// with the same number share a rule.
func (c *compiler) awayEgress(own string, r rule, v View) []networkingv1.NetworkPolicyEgressRule {
	var numbers []networkingv1.NetworkPolicyPort
	type number struct {
		proto corev1.Protocol
		port  uint16
	}
	named := map[number][]int{}
	_, pods, spans := c.resolve(own, r.peers)
	for _, p := range copied(r.ports) {
		if p.Port == nil || p.Port.Type == intstr.Int {
			numbers = append(numbers, p)
			continue
		}
		for _, i := range c.within(r.peers, pods, spans) {
			for _, s := range c.sockets([]int{i}, protocol(p.Protocol), p.Port.StrVal) {
				n := number{s.Protocol, s.Port}
				named[n] = append(named[n], i)
			}
		}
	}
	var out []networkingv1.NetworkPolicyEgressRule
	if len(numbers) > 0 || len(r.ports) == 0 {
		if peers, any := c.away(own, r, v); any || len(peers) > 0 {
			out = append(out, networkingv1.NetworkPolicyEgressRule{To: peers, Ports: numbers})
		}
	}
	byProtocol := func(a, b number) int { return cmp.Or(cmp.Compare(a.proto, b.proto), cmp.Compare(a.port, b.port)) }
	for _, n := range slices.SortedFunc(maps.Keys(named), byProtocol) {
		if peers := ipBlocks(c.spansAway(named[n], v).merged().prefixes()); len(peers) > 0 {
			port := intstr.FromInt32(int32(n.port))
			out = append(out, networkingv1.NetworkPolicyEgressRule{To: peers, Ports: []networkingv1.NetworkPolicyPort{{Protocol: proto(n.proto), Port: &port}}})
		}
	}
	return out
}

// clusterDNS is DNS as in most clusters: pods in kube-system. (In Rivulet it is on the node, which pods always reach.)
func clusterDNS() networkingv1.NetworkPolicyEgressRule {
	port := intstr.FromInt32(53)
	return networkingv1.NetworkPolicyEgressRule{
		To: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceSystem}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
		}},
		Ports: []networkingv1.NetworkPolicyPort{{Protocol: proto(corev1.ProtocolUDP), Port: &port}, {Protocol: proto(corev1.ProtocolTCP), Port: &port}},
	}
}

func ipBlocks(all []netip.Prefix) []networkingv1.NetworkPolicyPeer {
	var out []networkingv1.NetworkPolicyPeer
	for _, p := range all {
		out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: p.String()}})
	}
	return out
}

// copied sets the protocol where the API server of the other cluster would, so that the two are equal.
func copied(ports []networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for _, p := range ports {
		p = *p.DeepCopy()
		p.Protocol = proto(protocol(p.Protocol))
		out = append(out, p)
	}
	return out
}

func proto(p corev1.Protocol) *corev1.Protocol { return &p }
