// Package networkpolicy evaluates NetworkPolicies (networking.k8s.io/v1). Compile translates a World to a Plan, sets
// and chains of rules for a packet filter (appliance/addons/netpol); Resolve translates one policy to an equal one for
// another cluster, where home's pods have other addresses (offload/consumer/reflect). Both are pure. Only the Watcher
// reads: policies always, pods and namespaces while there is a policy. Nothing is written, and nothing outlives the
// process. An invalid part of a policy matches nothing: the pods stay restricted.
package networkpolicy

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// World is everything that policies refer to, at one moment.
type World struct {
	// Namespaces are the labels of each.
	Namespaces map[string]labels.Set
	// Pods are the unfinished ones of the pod network; one without an address is ignored, and of two with the same the
	// first is valid.
	Pods     []Pod
	Policies []*networkingv1.NetworkPolicy
	// Peers are the ranges of addresses of pods on peers. No list of private networks contains them, so an ipBlock that
	// does not lie in one of them matches no pod there.
	Peers []netip.Prefix
}

// Pod is the part of a pod that policies use.
type Pod struct {
	Namespace, Name, UID string
	Labels               labels.Set
	Addr                 netip.Addr // IPv4, in this cluster's view
	Ports                []Port
}

// Port is a container port that has a name.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Number   uint16
}

// direction is seen from the pod that a policy selects.
type direction int

const (
	ingress direction = iota
	egress
)

// rule is an ingress or an egress rule: the same in both directions.
type rule struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

// rules returns those of a direction, and whether the policy restricts it at all. The API server sets policyTypes; an
// empty one is treated the same way.
func rules(p *networkingv1.NetworkPolicy, d direction) (rs []rule, held bool) {
	types := p.Spec.PolicyTypes
	if len(types) == 0 {
		types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			types = append(types, networkingv1.PolicyTypeEgress)
		}
	}
	want := networkingv1.PolicyTypeIngress
	if d == egress {
		want = networkingv1.PolicyTypeEgress
	}
	for _, t := range types {
		held = held || t == want
	}
	if !held {
		return nil, false
	}
	if d == ingress {
		for _, r := range p.Spec.Ingress {
			rs = append(rs, rule{r.From, r.Ports})
		}
		return rs, true
	}
	for _, r := range p.Spec.Egress {
		rs = append(rs, rule{r.To, r.Ports})
	}
	return rs, true
}

// selector parses one; an invalid one selects nothing, like nil.
func selector(s *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return parsed
}

// protocol of a port; the default is TCP.
func protocol(p *corev1.Protocol) corev1.Protocol {
	if p == nil || *p == "" {
		return corev1.ProtocolTCP
	}
	return *p
}
