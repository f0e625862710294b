package networkpolicy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Packet opens a connection. Port is that of the destination.
type Packet struct {
	From, To netip.Addr
	Protocol corev1.Protocol
	Port     uint16
}

// Side is the decision of the policies of the pod at one end.
type Side struct {
	// Policies are those that select the pod in this direction; without any, everything is allowed.
	Policies []*networkingv1.NetworkPolicy
	Allowed  bool
}

// Decider decides about single packets as the program of Compile does. Its methods must not be called concurrently.
type Decider struct {
	compiler
	byAddr map[netip.Addr]int
}

// NewDecider returns one for a world, which must not change.
func NewDecider(w World) *Decider {
	d := &Decider{compiler: newCompiler(w), byAddr: map[netip.Addr]int{}}
	for _, i := range d.all {
		d.byAddr[w.Pods[i].Addr] = i
	}
	return d
}

// Decide returns the decisions of the policies of both ends. An end that is no pod of the world has none.
func (d *Decider) Decide(k Packet) (out, in Side) {
	if k.From == k.To {
		return Side{Allowed: true}, Side{Allowed: true}
	}
	return d.side(egress, k.From, k.To, k), d.side(ingress, k.To, k.From, k)
}

func (d *Decider) side(way direction, end, other netip.Addr, k Packet) Side {
	pod, known := d.byAddr[end]
	if !known {
		return Side{Allowed: true}
	}
	s := Side{}
	for _, p := range d.world.Policies {
		rs, held := rules(p, way)
		if !held || p.Namespace != d.world.Pods[pod].Namespace || !selector(&p.Spec.PodSelector).Matches(d.world.Pods[pod].Labels) {
			continue
		}
		s.Policies = append(s.Policies, p)
		for _, r := range rs {
			for _, one := range d.rule(p, way, r, []int{pod}) {
				s.Allowed = s.Allowed || d.plan.accepts(one, other, k)
			}
		}
	}
	s.Allowed = s.Allowed || len(s.Policies) == 0
	return s
}

// accepts is the decision of a rule's program.
func (p Plan) accepts(r Rule, other netip.Addr, k Packet) bool {
	switch {
	case r.Peers != "" && !slices.Contains(p.Sets.Addrs[r.Peers], other) &&
		!slices.ContainsFunc(p.Sets.Ranges[r.Peers], func(g Range) bool { return g.First.Compare(other) <= 0 && other.Compare(g.Last) <= 0 }):
		return false
	case r.Sockets != "" && !slices.Contains(p.Sets.Sockets[r.Sockets], Socket{k.To, k.Protocol, k.Port}):
		return false
	}
	return r.Protocol == "" || r.Protocol == k.Protocol && (r.Low == 0 || r.Low <= k.Port && k.Port <= r.High)
}
