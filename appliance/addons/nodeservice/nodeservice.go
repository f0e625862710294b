// Package nodeservice creates Services without pods that lead to a port of the supervisor on the node's address: for
// cluster DNS and the resource metrics.
//
// It reads and alone writes the Services that it is called for, and one EndpointSlice for each. Ensure may be called
// again at any time and writes only differences. It does not watch: changes by others stay until the supervisor or the
// engine starts again.
package nodeservice

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// ManagedBy is the value of label ManagedByLabel of the objects made here.
const ManagedBy = "rivulet.dev"

const ManagedByLabel = "app.kubernetes.io/managed-by"

// Service is the Service to create.
type Service struct {
	Namespace, Name string
	// ClusterIP, if a certain one is needed.
	ClusterIP netip.Addr
	Labels    map[string]string
	// Addr is the address on which the supervisor listens, Node the node that has it: pods of that node use it as long as
	// it is there.
	Addr  netip.Addr
	Node  string
	Ports []Port
}

// Port of a Service, and the one on which the supervisor listens.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Port     uint16
	Target   uint16
}

// Ensure creates or updates the Service and its EndpointSlice.
func Ensure(ctx context.Context, client kubernetes.Interface, s Service) error {
	if err := ensureService(ctx, client, s.service()); err != nil {
		return fmt.Errorf("service %s/%s: %w", s.Namespace, s.Name, err)
	}
	if err := ensureSlice(ctx, client, s.slice()); err != nil {
		return fmt.Errorf("endpoints of service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// EnsureEndpoint creates or updates an EndpointSlice of the Service for one more node.
func EnsureEndpoint(ctx context.Context, client kubernetes.Interface, s Service, labels map[string]string) error {
	slice := s.slice()
	slice.Name, slice.Labels = s.Name+"-"+s.Node, merged(slice.Labels, labels)
	if err := ensureSlice(ctx, client, slice); err != nil {
		return fmt.Errorf("endpoints of service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

func ensureService(ctx context.Context, client kubernetes.Interface, want *corev1.Service) error {
	services := client.CoreV1().Services(want.Namespace)
	have, err := services.Get(ctx, want.Name, metav1.GetOptions{})
	if err == nil && want.Spec.ClusterIP != "" && have.Spec.ClusterIP != want.Spec.ClusterIP {
		// The cluster IP cannot be changed.
		if err := services.Delete(ctx, want.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}}); err != nil {
			return err
		}
		err = apierrors.NewNotFound(corev1.Resource("services"), want.Name)
	}
	if apierrors.IsNotFound(err) {
		_, err = services.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsInvalid(err) && want.Spec.ClusterIP != "" {
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
	slices := client.DiscoveryV1().EndpointSlices(want.Namespace)
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

func (s Service) service() *corev1.Service {
	object := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Name: s.Name, Namespace: s.Namespace,
		Labels: merged(s.Labels, map[string]string{ManagedByLabel: ManagedBy}),
	}}
	if s.ClusterIP.IsValid() {
		object.Spec.ClusterIP = s.ClusterIP.String()
	}
	for _, p := range s.Ports {
		object.Spec.Ports = append(object.Spec.Ports, corev1.ServicePort{
			Name: p.Name, Protocol: p.Protocol, Port: int32(p.Port), TargetPort: intstr.FromInt32(int32(p.Target)),
		})
	}
	return object
}

// slice has one address, of the family in its name: the type of a slice cannot be changed.
func (s Service) slice() *discoveryv1.EndpointSlice {
	family, name := discoveryv1.AddressTypeIPv4, s.Name+"-rivulet"
	if s.Addr.Is6() {
		family, name = discoveryv1.AddressTypeIPv6, s.Name+"-rivulet-6"
	}
	ready := true
	object := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: s.Namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: ManagedBy},
		},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{s.Addr.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
	if s.Node != "" {
		object.Endpoints[0].NodeName, object.Endpoints[0].Hints = &s.Node, &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: s.Node}}}
	}
	for _, p := range s.Ports {
		number := int32(p.Target)
		object.Ports = append(object.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &number})
	}
	return object
}

func merged(have, want map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, have)
	maps.Copy(all, want)
	return all
}
