package reflect

import (
	"context"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/policy"
)

// unheldIngresses stand for Ingresses where the target takes none, as a foreign cluster
// does. Who has opted one in is told that it opens nothing there.
type unheldIngresses struct {
	space    *space
	informer cache.SharedIndexInformer
}

func newUnheldIngresses(s *space) *unheldIngresses {
	f := informers.NewSharedInformerFactoryWithOptions(s.clients.home, 0, informers.WithNamespace(s.home))
	return &unheldIngresses{s, f.Networking().V1().Ingresses().Informer()}
}

func (n *unheldIngresses) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{n.informer}
}
func (n *unheldIngresses) names() []string    { return nil }
func (n *unheldIngresses) extra(string) []key { return nil }

func (n *unheldIngresses) reconcile(_ context.Context, name string) error {
	i, ok := get[*networkingv1.Ingress](n.informer, n.space.home, name)
	id := key{policy.IngressKind, name}
	if !ok || !wantedAway(i, n.space.mode.Mode(policy.IngressKind)) {
		n.space.settled(id)
		return nil
	}
	n.space.tell(id, i, "ReflectionRefused", fmt.Sprintf(
		"%s takes no Ingresses: this one opens the application at home only, and reaches pods there where that target has a network; "+
			"leave its annotation %s out, or keep the pods where Ingresses follow", n.space.target, policy.ReflectAnnotation))
	return nil
}

var _ mirror = (*unheldIngresses)(nil)
