package reflect

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"rivulet/offload/policy"
)

// nodePortPrefix is the prefix of the second Service, with second slices, that a Service with node ports has in the
// twin. Its ports are the node ports, its endpoints the same. The provider routes the node ports of home's node there
// (offload/nodeagent/homeaddr): with a separate cluster IP, replies are recognized as the node's.
const nodePortPrefix = "rv-np-"

// withNodePorts reflects Services with node ports, and their slices, a second time. node is the address of home's node.
func withNodePorts(node netip.Addr, services *kindReflector[*corev1.Service], ends *kindReflector[*discoveryv1.EndpointSlice]) {
	home := services.space.home
	services.seconds = append(services.seconds, second[*corev1.Service]{prefix: nodePortPrefix, make: func(at, twin *corev1.Service) bool {
		twin.Spec.Ports = nil
		for _, p := range at.Spec.Ports {
			if p.NodePort != 0 {
				p.Port, p.NodePort = p.NodePort, 0
				twin.Spec.Ports = append(twin.Spec.Ports, *p.DeepCopy())
			}
		}
		twin.Annotations = map[string]string{policy.HomeNodeAnnotation: node.String()}
		return hasNodePorts(at)
	}})
	ends.seconds = append(ends.seconds, second[*discoveryv1.EndpointSlice]{prefix: nodePortPrefix, make: func(at, twin *discoveryv1.EndpointSlice) bool {
		of := at.Labels[discoveryv1.LabelServiceName]
		twin.Labels[discoveryv1.LabelServiceName] = secondName(nodePortPrefix, of)
		service, ok := get[*corev1.Service](services.home, home, of)
		return ok && hasNodePorts(service)
	}})
	services.touches = func(service string) (also []key) {
		for _, o := range ends.home.GetStore().List() {
			if s := o.(*discoveryv1.EndpointSlice); s.Labels[discoveryv1.LabelServiceName] == service {
				also = append(also, key{ends.name, secondName(nodePortPrefix, s.Name)})
			}
		}
		return also
	}
}

func hasNodePorts(s *corev1.Service) bool {
	if s.Spec.Type != corev1.ServiceTypeNodePort && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	return slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort != 0 })
}
