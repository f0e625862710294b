package reflect

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/consumer/homecache"
	"rivulet/offload/policy"
)

// unheld represents objects of a kind that the target refuses, or implements in another way: an event on each, once,
// says what does not apply there. Nothing is written to the target.
type unheld[T object[T]] struct {
	space *space
	kind  string
	home  *homecache.Informer
	// reason and message are of the event; without a message there is none.
	reason  string
	message func(o T) string
}

func newUnheld[T object[T]](s *space, k kind[T], reason string, message func(T) string) *unheld[T] {
	return &unheld[T]{s, k.name, k.atHome(s), reason, message}
}

func (n *unheld[T]) informers() (*homecache.Informer, cache.SharedIndexInformer) { return n.home, nil }
func (n *unheld[T]) names() []string                                             { return nil }
func (n *unheld[T]) extra(string) []key                                          { return nil }

func (n *unheld[T]) reconcile(_ context.Context, name string) error {
	id := key{n.kind, name}
	if o, ok := get[T](n.home, n.space.home, name); ok {
		if say := n.message(o); say != "" {
			n.space.report(id, o, n.reason, say)
			return nil
		}
	}
	n.space.settled(id)
	return nil
}

const refusedThere = "ReflectionRefused"

// unheldPolicies are for a target that accepts none: it is of an older version, or its owner does not allow it. Traffic
// through home is still filtered. An annotation of users silences the event.
func unheldPolicies(s *space) mirror {
	return newUnheld(s, networkPolicyKind(), refusedThere, func(p *networkingv1.NetworkPolicy) string {
		if p.Annotations[policy.ReflectAnnotation] == policy.ReflectOff {
			return ""
		}
		return fmt.Sprintf(
			"%[1]s takes no NetworkPolicies: pods that run there are held by this one only where traffic passes home, and not from each other or from public addresses; "+
				"keep pods that need it at home (label %[2]s=off in their template), or annotate it %[3]s=off if that is known; of a peer, a newer version whose owner allows it takes them", s.target, policy.NamespaceLabel, policy.ReflectAnnotation)
	})
}

// unheldIngresses are for a target that accepts none, as a foreign cluster. An opted-in Ingress gets an event that it
// opens nothing there.
func unheldIngresses(s *space) mirror {
	return newUnheld(s, ingressKind(), refusedThere, func(i *networkingv1.Ingress) string {
		if !wantedAway(i, s.mode.Mode(policy.IngressKind)) {
			return ""
		}
		return fmt.Sprintf(
			"%s takes no Ingresses: this one opens the application at home only, and reaches pods there where that target has a network; "+
				"leave its annotation %s out, or keep the pods where Ingresses follow", s.target, policy.ReflectAnnotation)
	})
}

// unheldServices are for a target with its own implementation of Services (offload/gatewaypod): TCP and UDP only.
func unheldServices(s *space) mirror {
	return newUnheld(s, services(nil), ReasonLeftOut, func(o *corev1.Service) string {
		if !slices.ContainsFunc(o.Spec.Ports, func(p corev1.ServicePort) bool { return p.Protocol == corev1.ProtocolSCTP }) {
			return ""
		}
		return fmt.Sprintf("no SCTP passes to and from %s: ports of this Service that are SCTP are not reached from there; run the pods that need them at home, or at a peer (label %s)", s.target, policy.NamespaceToLabel)
	})
}
