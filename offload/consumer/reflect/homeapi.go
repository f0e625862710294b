package reflect

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"rivulet/offload/consumer/homecache"
	"rivulet/offload/homeapi"
)

// withHomeAPI adds the way to home's API server and home's authority to the reflected objects. They do not exist at
// home, but pass the same engine. control is home's address for it, in its own pod CIDR; without a valid one no way is
// added. at is the address of home's Service kubernetes, which the way stands for.
func withHomeAPI(home string, control netip.AddrPort, at string, s kind[*corev1.Service], e kind[*discoveryv1.EndpointSlice], m kind[*corev1.ConfigMap]) (
	kind[*corev1.Service], kind[*discoveryv1.EndpointSlice], kind[*corev1.ConfigMap]) {
	m = withAuthority(home, m)
	if !control.IsValid() {
		return s, e, m
	}
	meta := metav1.ObjectMeta{Namespace: home, Name: homeapi.Service}
	name, protocol, port := "https", corev1.ProtocolTCP, int32(control.Port())
	s.made = made[*corev1.Service]{homeapi.Service: func(*homecache.Informer) (*corev1.Service, bool) {
		return &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: at, Ports: []corev1.ServicePort{
			{Name: name, Protocol: protocol, Port: homeapi.Port, TargetPort: intstr.FromInt32(port)}}}}, true
	}}
	e.made = made[*discoveryv1.EndpointSlice]{homeapi.Service: func(*homecache.Informer) (*discoveryv1.EndpointSlice, bool) {
		slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
			Ports:     []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{control.Addr().String()}}}}
		slice.Labels = map[string]string{discoveryv1.LabelServiceName: homeapi.Service}
		return slice, true
	}}
	return s, e, m
}

// withAuthority adds home's authority and the variables of its API server: volumes of tokens need the authority even
// without a way to home, and a target may have a way of its own.
func withAuthority(home string, m kind[*corev1.ConfigMap]) kind[*corev1.ConfigMap] {
	m.made = made[*corev1.ConfigMap]{homeapi.Authority: func(atHome *homecache.Informer) (*corev1.ConfigMap, bool) {
		root, ok := get[*corev1.ConfigMap](atHome, home, homeapi.RootCA)
		if !ok {
			return nil, false
		}
		root = root.DeepCopy()
		root.Name, root.Annotations = homeapi.Authority, nil
		return root, true
	}, homeapi.Variables: func(*homecache.Informer) (*corev1.ConfigMap, bool) {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: homeapi.Variables}, Data: homeapi.Env()}, true
	}}
	m.stands = map[string]string{homeapi.RootCA: homeapi.Authority}
	return m
}

// made are objects that do not exist at home but are reflected as if they did, by name, from the objects of their kind.
type made[T any] map[string]func(atHome *homecache.Informer) (T, bool)
