package reflect

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/networking/v1"

	"rivulet/offload/policy"
)

// ingresses reflects opted-in Ingresses: they open the application on the target's LAN as well as on home's. The
// addresses that the target's controller assigns are copied back.
type ingresses struct {
	*kindReflector[*networkingv1.Ingress]
	// seen translates an address of the target's pods to home's view.
	seen func(netip.Addr) (netip.Addr, bool)
	// manager is the field manager of a status at home that was copied from the target.
	manager string
}

func ingressKind() kind[*networkingv1.Ingress] {
	return of(policy.IngressKind, &networkingv1.Ingress{}, func(c kubernetes.Interface, ns string) typed.IngressInterface {
		return c.NetworkingV1().Ingresses(ns)
	})
}

func newIngresses(s *space, c Config) *ingresses {
	k := ingressKind()
	k.bare, k.translate, k.merge = true, translateIngress, mergeIngress
	k.hint = "; its owner lends an ingress class by labelling it " + policy.LentLabel + "=NAMESPACE, that of its controller"
	manager := fmt.Sprintf("%s-%.100s", policy.FieldManager, c.Target.Name())
	return &ingresses{seen: c.Target.Home, manager: manager, kindReflector: newKindReflector(s, k)}
}

// withIngresses reflects the Services behind a reflected Ingress a second time, for the target's controller. The second
// ones have home's selector, so that the target itself writes their endpoints, from pods there: endpoints from home
// could lead a program of the target anywhere. Secrets with certificates follow such an Ingress.
func withIngresses(n *ingresses, services *kindReflector[*corev1.Service], secrets *kindReflector[*corev1.Secret]) {
	pods := secrets.used
	secrets.used = func(name string) (used, known bool) {
		if n.anyThat(func(i *networkingv1.Ingress) bool {
			return slices.ContainsFunc(i.Spec.TLS, func(t networkingv1.IngressTLS) bool { return t.SecretName == name })
		}) {
			return true, true
		}
		return pods(name)
	}
	services.seconds = append(services.seconds, second[*corev1.Service]{prefix: policy.IngressServicePrefix, bare: true, make: func(at, twin *corev1.Service) bool {
		twin.Spec.Selector, twin.Spec.ClusterIP, twin.Annotations = maps.Clone(at.Spec.Selector), "", nil
		return len(at.Spec.Selector) > 0 && at.Spec.Type != corev1.ServiceTypeExternalName && n.leadsTo(at.Name)
	}})
	n.touches = func(string) (also []key) {
		for _, o := range services.home.GetStore().List() {
			also = append(also, key{services.name, secondName(policy.IngressServicePrefix, o.(*corev1.Service).Name)})
		}
		for _, name := range secrets.names() {
			also = append(also, key{secrets.name, name})
		}
		return also
	}
}

// leadsTo reports whether a reflected Ingress has the Service as a backend.
func (n *ingresses) leadsTo(service string) bool {
	return n.anyThat(func(i *networkingv1.Ingress) bool {
		return slices.ContainsFunc(backends(&i.Spec), func(b *networkingv1.IngressServiceBackend) bool { return b.Name == service })
	})
}

// anyThat reports whether is holds for any reflected Ingress.
func (n *ingresses) anyThat(is func(*networkingv1.Ingress) bool) bool {
	return slices.ContainsFunc(n.home.GetStore().List(), func(o any) bool {
		i := o.(*networkingv1.Ingress)
		return n.follows(i) && is(i)
	})
}

func backends(spec *networkingv1.IngressSpec) (out []*networkingv1.IngressServiceBackend) {
	for _, r := range spec.Rules {
		if r.HTTP == nil {
			continue
		}
		for i := range r.HTTP.Paths {
			if b := r.HTTP.Paths[i].Backend.Service; b != nil {
				out = append(out, b)
			}
		}
	}
	return out
}

// translateIngress keeps rules and names of TLS Secrets, which are the same in the twin; backends are replaced by the
// second Services. The class is the target's default unless the annotation names one, since home's class has no meaning
// there. Annotations are for home's controller and are not copied.
func translateIngress(home *networkingv1.Ingress) (*networkingv1.Ingress, bool) {
	spec := *home.Spec.DeepCopy()
	spec.IngressClassName = nil
	for _, b := range backends(&spec) {
		b.Name = secondName(policy.IngressServicePrefix, b.Name)
	}
	if class := home.Annotations[policy.IngressClassAnnotation]; class != "" {
		spec.IngressClassName = &class
	}
	return &networkingv1.Ingress{Spec: spec}, true
}

func mergeIngress(have, want *networkingv1.Ingress) bool {
	class := have.Spec.IngressClassName
	have.Spec = *want.Spec.DeepCopy()
	if have.Spec.IngressClassName == nil { // the target's default
		have.Spec.IngressClassName = class
	}
	return true
}

func (n *ingresses) reconcile(ctx context.Context, name string) error {
	if err := n.kindReflector.reconcile(ctx, name); err != nil {
		return err
	}
	return n.reportHome(ctx, name)
}

// reportHome copies the addresses from the target's controller to home, unless a controller of home assigns addresses
// itself.
func (n *ingresses) reportHome(ctx context.Context, name string) error {
	home, ok := get[*networkingv1.Ingress](n.home, n.space.home, name)
	if !ok || home.DeletionTimestamp != nil {
		return nil
	}
	var want networkingv1.IngressLoadBalancerStatus
	if twin, there := get[*networkingv1.Ingress](n.twin, n.space.twin, name); there && twin.Labels[policy.ReflectedLabel] == n.space.owner && n.follows(home) {
		want = *twin.Status.LoadBalancer.DeepCopy()
		for i, point := range want.Ingress {
			if a, err := netip.ParseAddr(point.IP); err == nil {
				if here, ok := n.seen(a); ok {
					want.Ingress[i].IP = here.String()
				}
			}
		}
	}
	if equality.Semantic.DeepEqual(home.Status.LoadBalancer, want) {
		return nil
	}
	// The cache does not have the writer of the status.
	api := n.space.clients.home.NetworkingV1().Ingresses(n.space.home)
	live, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reflect: status of Ingress %s at home: %w", name, err)
	}
	ours := slices.ContainsFunc(live.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Manager == n.manager && f.Subresource == "status" })
	if len(live.Status.LoadBalancer.Ingress) > 0 && !ours || equality.Semantic.DeepEqual(live.Status.LoadBalancer, want) {
		return nil
	}
	live.Status.LoadBalancer = want
	if _, err := api.UpdateStatus(ctx, live, metav1.UpdateOptions{FieldManager: n.manager}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reflect: status of Ingress %s at home: %w", name, err)
	}
	return nil
}

var _ mirror = (*ingresses)(nil)
