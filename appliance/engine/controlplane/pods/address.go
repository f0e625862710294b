package pods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
)

// reportAddresses sets the endpoints of Service kubernetes, as slice and as Endpoints: the API server does not know the
// port for its clients. It makes Service kube-dns with the address that pods have as their resolver.
func reportAddresses(ctx context.Context, client kubernetes.Interface, at netip.AddrPort, dns netip.Addr) error {
	const service = "kubernetes"
	port := discoveryv1.EndpointPort{Name: ptr.To("https"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(at.Port()))}
	err := report(ctx, client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault), slice(service, at.Addr(), port), func(have, want *discoveryv1.EndpointSlice) bool {
		same := equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports)
		have.Endpoints, have.Ports = want.Endpoints, want.Ports
		return same
	})
	err = errors.Join(err, report(ctx, client.CoreV1().Endpoints(metav1.NamespaceDefault), &corev1.Endpoints{ //nolint:staticcheck // what old programs read
		ObjectMeta: metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}},
		Subsets: []corev1.EndpointSubset{{ //nolint:staticcheck // as above
			Addresses: []corev1.EndpointAddress{{IP: at.Addr().String()}}, Ports: []corev1.EndpointPort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: int32(at.Port())}},
		}},
	}, func(have, want *corev1.Endpoints) bool { //nolint:staticcheck // as above
		same := equality.Semantic.DeepEqual(have.Subsets, want.Subsets)
		have.Subsets = want.Subsets
		return same
	}))
	if !dns.IsValid() {
		return err
	}
	const resolver = "kube-dns"
	ports, ends := []corev1.ServicePort{}, []discoveryv1.EndpointPort{}
	for name, protocol := range map[string]corev1.Protocol{"dns": corev1.ProtocolUDP, "dns-tcp": corev1.ProtocolTCP} {
		ports = append(ports, corev1.ServicePort{Name: name, Protocol: protocol, Port: 53})
		ends = append(ends, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: ptr.To[int32](53)})
	}
	return errors.Join(err,
		report(ctx, client.CoreV1().Services(metav1.NamespaceSystem), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: resolver, Labels: map[string]string{"k8s-app": resolver, "kubernetes.io/cluster-service": "true"}},
			Spec:       corev1.ServiceSpec{ClusterIP: dns.String(), Ports: ports},
		}, kept),
		report(ctx, client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem), slice(resolver, dns, ends...), kept))
}

// kept leaves an object as an administrator may have changed it.
func kept[T any](T, T) bool { return true }

func slice(service string, at netip.Addr, ports ...discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "rivulet.dev"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: ports,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{at.String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
	}
}

// object is what report writes.
type object[T any] interface {
	*T
	metav1.Object
}

// writer is an API of objects.
type writer[P any] interface {
	Get(context.Context, string, metav1.GetOptions) (P, error)
	Create(context.Context, P, metav1.CreateOptions) (P, error)
	Update(context.Context, P, metav1.UpdateOptions) (P, error)
}

// report makes an object, or updates it unless same changes nothing in the first of its arguments.
func report[T any, P object[T]](ctx context.Context, api writer[P], want P, same func(have, want P) bool) error {
	have, err := api.Get(ctx, want.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, want, metav1.CreateOptions{FieldManager: policy.FieldManager})
	case err == nil && !same(have, want):
		_, err = api.Update(ctx, have, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	}
	if err != nil {
		return fmt.Errorf("pods: %T %s: %w", want, want.GetName(), err)
	}
	return nil
}
