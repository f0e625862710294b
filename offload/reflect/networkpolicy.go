package reflect

import (
	"context"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/policy"
)

// networkPolicies is the one kind of which users have to know that it does not
// follow its pods: a provider keeps guests apart by rules of its own, which a
// consumer's policies could only widen (docs/tenancy.md). Each says so once, unless
// its annotation says that this is known.
type networkPolicies struct {
	space    *space
	informer cache.SharedIndexInformer
}

func newNetworkPolicies(s *space) *networkPolicies {
	f := informers.NewSharedInformerFactoryWithOptions(s.clients.home, 0, informers.WithNamespace(s.home))
	return &networkPolicies{s, f.Networking().V1().NetworkPolicies().Informer()}
}

func (n *networkPolicies) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{n.informer}
}
func (n *networkPolicies) names() []string       { return nil }
func (n *networkPolicies) extra(string) []string { return nil }

func (n *networkPolicies) reconcile(_ context.Context, name string) error {
	p, ok := get[*networkingv1.NetworkPolicy](n.informer, n.space.home, name)
	id := key{"NetworkPolicy", name}
	if !ok || p.Annotations[policy.ReflectAnnotation] == policy.ReflectOff {
		n.space.settled(id)
		return nil
	}
	n.space.tell(id, p, "ReflectionRefused", fmt.Sprintf(
		"pods that run on %[1]s are not held by this NetworkPolicy: %[1]s lets them reach each other, home and public addresses, and nothing of its own; "+
			"keep pods that need it at home (label %[2]s=off), or annotate it %[3]s=off if that is known", n.space.target, policy.NamespaceLabel, policy.ReflectAnnotation))
	return nil
}
