package reflect

import (
	"context"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/networking/v1"

	"rivulet/offload/networkpolicy"
	"rivulet/offload/policy"
)

// World has the pods and namespaces that policies select; networkpolicy.Watcher is one.
type World interface {
	World() (networkpolicy.World, bool)
	// Changed returns a channel that gets a value after the answers of World may have changed, and the function that
	// ends the subscription.
	Changed() (<-chan struct{}, func())
}

// Prefixed is implemented by targets that have a list of the pod prefixes in their networks: an ipBlock in a policy of
// home does not refer to these.
type Prefixed interface {
	PodPrefixes() []netip.Prefix
}

// settling is how long changes of pods are collected before policies are compared again.
const settling = 100 * time.Millisecond

// networkPolicies resolves policies for the current target. A policy is reflected before its pods exist, so that no pod
// runs away unfiltered.
type networkPolicies struct {
	*kindReflector[*networkingv1.NetworkPolicy]
	world World
}

func networkPolicyKind() kind[*networkingv1.NetworkPolicy] {
	return of(policy.NetworkPolicyKind, &networkingv1.NetworkPolicy{}, func(c kubernetes.Interface, ns string) typed.NetworkPolicyInterface {
		return c.NetworkingV1().NetworkPolicies(ns)
	})
}

func newNetworkPolicies(s *space, c Config) *networkPolicies {
	k := networkPolicyKind()
	k.translate = func(home *networkingv1.NetworkPolicy) (*networkingv1.NetworkPolicy, bool) {
		w, _ := c.Policies.World()
		view := networkpolicy.View{Away: c.Target.Away, Node: c.Control}
		if p, ok := c.Target.(Prefixed); ok {
			view.Pods = p.PodPrefixes()
		}
		return &networkingv1.NetworkPolicy{Spec: networkpolicy.Resolve(home, w, view)}, true
	}
	k.merge = func(have, want *networkingv1.NetworkPolicy) bool {
		have.Spec = want.Spec
		return true
	}
	return &networkPolicies{newKindReflector(s, k), c.Policies}
}

// reconcile waits until the world has the policy: before that its pods may be missing, too.
func (n *networkPolicies) reconcile(ctx context.Context, name string) error {
	if _, atHome := get[*networkingv1.NetworkPolicy](n.home, n.space.home, name); atHome {
		w, ok := n.world.World()
		if !ok || !slices.ContainsFunc(w.Policies, func(p *networkingv1.NetworkPolicy) bool { return p.Namespace == n.space.home && p.Name == name }) {
			return nil // queued again when the world changes
		}
	}
	return n.kindReflector.reconcile(ctx, name)
}

// follow compares all policies after changes of pods or namespaces, until ctx ends.
func (n *networkPolicies) follow(ctx context.Context) {
	changed, stop := n.world.Changed()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		for _, name := range n.names() {
			n.space.queue.AddAfter(key{policy.NetworkPolicyKind, name}, settling)
		}
	}
}
