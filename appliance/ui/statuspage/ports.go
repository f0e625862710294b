package statuspage

import (
	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/api"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/engine"
)

// OwnPorts are those that no Service may use on the device, whether a program listens there now or not.
func OwnPorts(metrics uint16) map[loadbalancer.Port]string {
	tcp := func(n uint16) loadbalancer.Port { return loadbalancer.Port{Protocol: corev1.ProtocolTCP, Number: n} }
	udp := func(n uint16) loadbalancer.Port { return loadbalancer.Port{Protocol: corev1.ProtocolUDP, Number: n} }
	return map[loadbalancer.Port]string{
		tcp(engine.PortAPI): "the Kubernetes API", tcp(engine.PortKubelet): "the kubelet",
		tcp(fixed.ControlPort): "for peers", udp(fixed.ControlPort): "the tunnel to peers", udp(5353): "the discovery of peers",
		tcp(fixed.DNSPort): "the cluster's DNS", udp(fixed.DNSPort): "the cluster's DNS", tcp(metrics): "the resource metrics",
		tcp(Port): "the status page", tcp(api.MetricsPort): "the metrics",
	}
}
