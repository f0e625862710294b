package statuspage

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/addons/loadbalancer"
)

func TestNoServiceDrawsAwayThePagesLastPort(t *testing.T) {
	if why := OwnPorts(1443)[loadbalancer.Port{Protocol: corev1.ProtocolTCP, Number: Port}]; why == "" {
		t.Error("a Service may draw the page's last port away")
	}
}
