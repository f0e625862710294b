package pods

import (
	"context"
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

// reportAddress sets the endpoint of Service kubernetes: the API server does not know the port for its clients.
func reportAddress(ctx context.Context, client kubernetes.Interface, at netip.AddrPort) error {
	const service = "kubernetes"
	slices := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	want := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "rivulet.dev"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("https"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(at.Port()))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{at.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
	}
	have, err := slices.Get(ctx, service, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = slices.Create(ctx, want, metav1.CreateOptions{FieldManager: policy.FieldManager})
	case err == nil && !(equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports)):
		have.Endpoints, have.Ports = want.Endpoints, want.Ports
		_, err = slices.Update(ctx, have, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	}
	if err != nil {
		return fmt.Errorf("pods: the endpoint of Service %s: %w", service, err)
	}
	return nil
}
