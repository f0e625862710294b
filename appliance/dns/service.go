package dns

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

const (
	serviceNamespace = metav1.NamespaceSystem
	serviceName      = "kube-dns" // the name that Kubernetes' conformance wants
	managedBy        = "rivulet.dev"
)

// EnsureService makes the Service kube-system/kube-dns with the given cluster IP
// lead to addr. It is idempotent, and writes only what differs.
func EnsureService(ctx context.Context, client kubernetes.Interface, serviceIP netip.Addr, addr netip.AddrPort) error {
	if err := ensureService(ctx, client, service(serviceIP, addr)); err != nil {
		return fmt.Errorf("dns: service %s/%s: %w", serviceNamespace, serviceName, err)
	}
	if err := ensureSlice(ctx, client, slice(addr)); err != nil {
		return fmt.Errorf("dns: endpoints of service %s/%s: %w", serviceNamespace, serviceName, err)
	}
	return nil
}

func ensureService(ctx context.Context, client kubernetes.Interface, want *corev1.Service) error {
	services := client.CoreV1().Services(serviceNamespace)
	have, err := services.Get(ctx, serviceName, metav1.GetOptions{})
	if err == nil && have.Spec.ClusterIP != want.Spec.ClusterIP {
		// The cluster IP cannot be changed.
		if err := services.Delete(ctx, serviceName, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}}); err != nil {
			return err
		}
		err = apierrors.NewNotFound(corev1.Resource("services"), serviceName)
	}
	if apierrors.IsNotFound(err) {
		_, err = services.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsInvalid(err) {
			return fmt.Errorf("%w: give up the service that has the cluster IP %s", err, want.Spec.ClusterIP)
		}
		return err
	}
	if err != nil {
		return err
	}
	update := have.DeepCopy()
	update.Labels = merged(have.Labels, want.Labels)
	update.Spec.Selector = nil
	update.Spec.Ports = want.Spec.Ports
	if equality.Semantic.DeepEqual(have, update) {
		return nil
	}
	_, err = services.Update(ctx, update, metav1.UpdateOptions{})
	return err
}

func ensureSlice(ctx context.Context, client kubernetes.Interface, want *discoveryv1.EndpointSlice) error {
	slices := client.DiscoveryV1().EndpointSlices(serviceNamespace)
	have, err := slices.Get(ctx, want.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = slices.Create(ctx, want, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	update := have.DeepCopy()
	update.Labels = merged(have.Labels, want.Labels)
	update.Endpoints, update.Ports = want.Endpoints, want.Ports
	if equality.Semantic.DeepEqual(have, update) {
		return nil
	}
	_, err = slices.Update(ctx, update, metav1.UpdateOptions{})
	return err
}

func service(ip netip.Addr, addr netip.AddrPort) *corev1.Service {
	port := func(name string, protocol corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: protocol, Port: 53, TargetPort: intstr.FromInt32(int32(addr.Port()))}
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: serviceName, Namespace: serviceNamespace,
			Labels: map[string]string{"k8s-app": serviceName, "kubernetes.io/cluster-service": "true", "app.kubernetes.io/managed-by": managedBy},
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip.String(),
			Ports:     []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
		},
	}
}

// slice holds one address, of the family that its name says: the type of a
// slice cannot be changed.
func slice(addr netip.AddrPort) *discoveryv1.EndpointSlice {
	family, name := discoveryv1.AddressTypeIPv4, serviceName+"-rivulet"
	if addr.Addr().Is6() {
		family, name = discoveryv1.AddressTypeIPv6, serviceName+"-rivulet-6"
	}
	port := func(name string, protocol corev1.Protocol) discoveryv1.EndpointPort {
		number := int32(addr.Port())
		return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number}
	}
	ready := true
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: serviceNamespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: serviceName, discoveryv1.LabelManagedBy: managedBy},
		},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{addr.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:       []discoveryv1.EndpointPort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
	}
}

func merged(have, want map[string]string) map[string]string {
	all := map[string]string{}
	for k, v := range have {
		all[k] = v
	}
	for k, v := range want {
		all[k] = v
	}
	return all
}
