package appliance

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/ui/statuspage"
)

func TestNoServiceDrawsAwayThePagesLastPort(t *testing.T) {
	if why := ownPorts()[loadbalancer.Port{Protocol: corev1.ProtocolTCP, Number: statuspage.Port}]; why == "" {
		t.Error("a Service may draw the page's last port away")
	}
}
