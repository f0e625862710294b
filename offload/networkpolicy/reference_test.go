package networkpolicy

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

// A slow and obvious reading of the API's documentation, for one packet at a time, that
// shares nothing with the compiler.

// packet opens a connection; ports of protocols without any are 0.
type packet struct {
	src, dst netip.Addr
	proto    corev1.Protocol
	port     uint16
}

func allowed(w World, p packet) bool {
	return p.src == p.dst || sideAllows(w, p.src, true, p) && sideAllows(w, p.dst, false, p)
}

// sideAllows asks the policies of the pod at one end.
func sideAllows(w World, end netip.Addr, out bool, p packet) bool {
	pod, ok := podAt(w, end)
	if !ok {
		return true
	}
	isolated := false
	for _, np := range w.Policies {
		if np.Namespace != pod.Namespace || !matches(&np.Spec.PodSelector, pod.Labels) {
			continue
		}
		if out && slices.Contains(np.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
			isolated = true
			for _, r := range np.Spec.Egress {
				if peersMatch(w, np.Namespace, r.To, p.dst) && portsMatch(w, r.Ports, p) {
					return true
				}
			}
		}
		if !out && slices.Contains(np.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
			isolated = true
			for _, r := range np.Spec.Ingress {
				if peersMatch(w, np.Namespace, r.From, p.src) && portsMatch(w, r.Ports, p) {
					return true
				}
			}
		}
	}
	return !isolated
}

func podAt(w World, a netip.Addr) (Pod, bool) {
	for _, p := range w.Pods {
		if p.Addr == a {
			return p, true
		}
	}
	return Pod{}, false
}

func matches(s *metav1.LabelSelector, of labels.Set) bool {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && parsed.Matches(of)
}

func peersMatch(w World, own string, peers []networkingv1.NetworkPolicyPeer, a netip.Addr) bool {
	if len(peers) == 0 {
		return true
	}
	for _, peer := range peers {
		if b := peer.IPBlock; b != nil {
			cidr := netip.MustParsePrefix(b.CIDR)
			in := cidr.Contains(a)
			for _, p := range w.Peers {
				in = in && (!p.Contains(a) || p.Contains(cidr.Addr()) && p.Bits() <= cidr.Bits())
			}
			for _, e := range b.Except {
				in = in && !netip.MustParsePrefix(e).Contains(a)
			}
			if in {
				return true
			}
			continue
		}
		pod, ok := podAt(w, a)
		if !ok {
			continue
		}
		place := pod.Namespace == own
		if peer.NamespaceSelector != nil {
			of, exists := w.Namespaces[pod.Namespace]
			place = exists && matches(peer.NamespaceSelector, of)
		}
		if place && (peer.PodSelector == nil || matches(peer.PodSelector, pod.Labels)) {
			return true
		}
	}
	return false
}

func portsMatch(w World, ports []networkingv1.NetworkPolicyPort, p packet) bool {
	if len(ports) == 0 {
		return true
	}
	for _, port := range ports {
		proto := corev1.ProtocolTCP
		if port.Protocol != nil {
			proto = *port.Protocol
		}
		if proto != p.proto {
			continue
		}
		if port.Port == nil {
			return true
		}
		if port.Port.Type == intstr.String {
			pod, _ := podAt(w, p.dst)
			for _, c := range pod.Ports {
				if c.Name == port.Port.StrVal && c.Protocol == proto && c.Number == p.port {
					return true
				}
			}
			continue
		}
		last := port.Port.IntVal
		if port.EndPort != nil {
			last = *port.EndPort
		}
		if port.Port.IntVal <= int32(p.port) && int32(p.port) <= last {
			return true
		}
	}
	return false
}

// runs a plan as a packet filter does.
func (p Plan) passes(k packet) bool {
	if k.src == k.dst {
		return true
	}
	return p.side(p.Egress[k.src], k.dst, k) && p.side(p.Ingress[k.dst], k.src, k)
}

func (p Plan) side(class string, other netip.Addr, k packet) bool {
	if class == "" {
		return true
	}
	for _, chain := range p.Classes[class] {
		for _, r := range p.Chains[chain] {
			if r.Peers != "" && !slices.Contains(p.Sets.Addrs[r.Peers], other) &&
				!slices.ContainsFunc(p.Sets.Ranges[r.Peers], func(g Range) bool { return g.First.Compare(other) <= 0 && other.Compare(g.Last) <= 0 }) {
				continue
			}
			if r.Sockets != "" && !slices.Contains(p.Sets.Sockets[r.Sockets], Socket{k.dst, k.proto, k.port}) {
				continue
			}
			if r.Protocol != "" && (r.Protocol != k.proto || r.Low != 0 && (k.port < r.Low || k.port > r.High)) {
				continue
			}
			return true
		}
	}
	return false
}

// Small alphabets, so that things meet.
var (
	someNamespaces = []string{"lab", "web", "db"}
	someKeys       = []string{"app", "tier"}
	someValues     = []string{"a", "b", "c"}
	somePorts      = []uint16{80, 81, 90, 443}
	someProtocols  = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	someNames      = []string{"http", "metrics"}
)

func drawLabels(t *rapid.T, what string) labels.Set {
	return rapid.MapOf(rapid.SampledFrom(someKeys), rapid.SampledFrom(someValues)).Draw(t, what)
}

func drawSelector(t *rapid.T, what string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if rapid.Bool().Draw(t, what+" has labels") {
		s.MatchLabels = drawLabels(t, what)
	}
	if rapid.IntRange(0, 3).Draw(t, what+" has expressions") == 0 {
		r := metav1.LabelSelectorRequirement{Key: rapid.SampledFrom(someKeys).Draw(t, "key"),
			Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}).Draw(t, "operator")}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			r.Values = rapid.SliceOfN(rapid.SampledFrom(someValues), 1, 2).Draw(t, "values")
		}
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	return s
}

func drawPeer(t *rapid.T) networkingv1.NetworkPolicyPeer {
	switch rapid.IntRange(0, 3).Draw(t, "kind of peer") {
	case 0:
		return networkingv1.NetworkPolicyPeer{PodSelector: drawSelector(t, "pods")}
	case 1:
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: drawSelector(t, "namespaces")}
	case 2:
		return networkingv1.NetworkPolicyPeer{PodSelector: drawSelector(t, "pods"), NamespaceSelector: drawSelector(t, "namespaces")}
	}
	b := &networkingv1.IPBlock{CIDR: rapid.SampledFrom([]string{"10.42.0.0/24", "10.42.0.0/30", "0.0.0.0/0", "192.0.2.0/24", "10.42.0.4/30", "255.255.255.0/24", "10.42.0.3/32", "240.3.0.0/30", "240.0.0.0/4", "240.3.0.2/32"}).Draw(t, "block")}
	for _, e := range rapid.SliceOfN(rapid.SampledFrom([]string{"10.42.0.0/31", "10.42.0.4/32", "192.0.2.128/25", "10.0.0.0/8", "255.255.255.255/32", "240.3.0.2/31"}), 0, 2).Draw(t, "except") {
		if outer, inner := netip.MustParsePrefix(b.CIDR), netip.MustParsePrefix(e); outer.Overlaps(inner) && outer.Bits() < inner.Bits() {
			b.Except = append(b.Except, e)
		}
	}
	return networkingv1.NetworkPolicyPeer{IPBlock: b}
}

func drawPort(t *rapid.T) networkingv1.NetworkPolicyPort {
	p := networkingv1.NetworkPolicyPort{}
	if rapid.Bool().Draw(t, "says its protocol") {
		p.Protocol = proto(rapid.SampledFrom(someProtocols).Draw(t, "protocol"))
	}
	switch rapid.IntRange(0, 3).Draw(t, "kind of port") {
	case 0:
	case 1:
		name := intstr.FromString(rapid.SampledFrom(someNames).Draw(t, "port name"))
		p.Port = &name
	default:
		n := intstr.FromInt32(int32(rapid.SampledFrom(somePorts).Draw(t, "port")))
		p.Port = &n
		if rapid.Bool().Draw(t, "to another") {
			end := n.IntVal + int32(rapid.IntRange(0, 20).Draw(t, "ports"))
			p.EndPort = &end
		}
	}
	return p
}

func drawWorld(t *rapid.T) World {
	w := World{Namespaces: map[string]labels.Set{}, Peers: []netip.Prefix{netip.MustParsePrefix("240.0.0.0/5")}}
	for _, n := range someNamespaces {
		w.Namespaces[n] = drawLabels(t, n)
	}
	for i := range rapid.IntRange(1, 7).Draw(t, "pods") {
		p := Pod{Namespace: rapid.SampledFrom(someNamespaces).Draw(t, "namespace"), Name: fmt.Sprint("p", i), UID: fmt.Sprint(i), Labels: drawLabels(t, "pod"),
			Addr: netip.AddrFrom4([4]byte{10, 42, 0, byte(i)})}
		if rapid.Bool().Draw(t, "on a peer") {
			p.Addr = netip.AddrFrom4([4]byte{240, 3, 0, byte(i)})
		}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(someNames), 0, 2, rapid.ID).Draw(t, "named ports") {
			p.Ports = append(p.Ports, Port{name, rapid.SampledFrom(someProtocols).Draw(t, "protocol"), rapid.SampledFrom(somePorts).Draw(t, "number")})
		}
		w.Pods = append(w.Pods, p)
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "policies") {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Namespace: rapid.SampledFrom(someNamespaces).Draw(t, "namespace")},
			Spec: networkingv1.NetworkPolicySpec{PodSelector: *drawSelector(t, "holds"),
				PolicyTypes: rapid.SampledFrom([][]networkingv1.PolicyType{{"Ingress"}, {"Egress"}, {"Ingress", "Egress"}}).Draw(t, "types")}}
		peers := func() (out []networkingv1.NetworkPolicyPeer) {
			for range rapid.IntRange(0, 3).Draw(t, "peers") {
				out = append(out, drawPeer(t))
			}
			return out
		}
		ports := func() (out []networkingv1.NetworkPolicyPort) {
			for range rapid.IntRange(0, 2).Draw(t, "ports") {
				out = append(out, drawPort(t))
			}
			return out
		}
		for range rapid.IntRange(0, 2).Draw(t, "ingress rules") {
			p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: peers(), Ports: ports()})
		}
		for range rapid.IntRange(0, 2).Draw(t, "egress rules") {
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: peers(), Ports: ports()})
		}
		w.Policies = append(w.Policies, p)
	}
	return w
}

// ends are all addresses that packets come from and go to.
func ends(w World) []netip.Addr {
	out := []netip.Addr{}
	for _, text := range []string{"10.42.0.200", "192.0.2.1", "192.0.2.200", "203.0.113.1", "255.255.255.255", "240.3.0.200"} {
		out = append(out, netip.MustParseAddr(text))
	}
	for _, p := range w.Pods {
		out = append(out, p.Addr)
	}
	return out
}

func packets(w World, each func(packet)) {
	for _, src := range ends(w) {
		for _, dst := range ends(w) {
			each(packet{src, dst, "ICMP", 0})
			for _, proto := range someProtocols {
				for _, port := range append(somePorts, 85, 99) {
					each(packet{src, dst, proto, port})
				}
			}
		}
	}
}
