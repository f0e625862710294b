package gatewaypod

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/homeapi"
	"rivulet/offload/target/external/rewrite"
)

// wayHome is home's API server as a Service of home, under the name that pods use everywhere, with its endpoint for
// away pods. Home recognizes its own pods by the source address of a connection (homeapi.Gate).
func wayHome(control netip.AddrPort) (*corev1.Service, *discoveryv1.EndpointSlice, bool) {
	if !control.IsValid() {
		return nil, nil, false
	}
	name, protocol, port := "https", corev1.ProtocolTCP, int32(control.Port())
	meta := metav1.ObjectMeta{Namespace: rewrite.HomeAPINamespace, Name: rewrite.HomeAPIName}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: name, Protocol: protocol, Port: homeapi.Port}}}}
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: rewrite.HomeAPIName}
	return service, &discoveryv1.EndpointSlice{ObjectMeta: meta, Ports: []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{control.Addr().String()}}}}, true
}
