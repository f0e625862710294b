// Package networkpolicy gives NetworkPolicies (networking.k8s.io/v1) their meaning. Compile turns a World into a Plan, sets
// and chains of rules for a packet filter (appliance/addons/netpol); Resolve turns one policy into an equal one for
// another cluster, where home's pods have other addresses (offload/consumer/reflect). Both are pure. Only the Watcher
// reads anything: policies, always, and pods and namespaces as long as there is a policy. Nothing is written and
// nothing outlives the process. What of a policy is not understood matches nobody: the pods stay held.
package networkpolicy

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// World is everything that policies speak of, at one moment.
type World struct {
	// Namespaces are the labels of each.
	Namespaces map[string]labels.Set
	// Pods are those of the pod network that have not finished; one that has no address
	// yet counts for nothing, and of two with the same the first is right.
	Pods     []Pod
	Policies []*networkingv1.NetworkPolicy
	// Peers are the ranges that pods on peers have their addresses from. No list of private networks
	// names them, so an ipBlock that does not lie in one of them means nobody there.
	Peers []netip.Prefix
}

// Pod is what policies see of a pod.
type Pod struct {
	Namespace, Name, UID string
	Labels               labels.Set
	Addr                 netip.Addr // IPv4, as this cluster sees it
	Ports                []Port
}

// Port is a container port that has a name.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Number   uint16
}

// direction is seen from the pod that a policy holds.
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

// rules returns those of a direction, and whether the policy holds it at all. The API
// server fills in policyTypes; where somebody left it empty the same is assumed.
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

// selector parses one; what cannot be parsed selects nothing, as nil does.
func selector(s *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return parsed
}

// protocol of a port: TCP unless it says otherwise.
func protocol(p *corev1.Protocol) corev1.Protocol {
	if p == nil || *p == "" {
		return corev1.ProtocolTCP
	}
	return *p
}
