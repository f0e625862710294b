package dns

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/addons/nodeservice"
)

const (
	serviceNamespace = metav1.NamespaceSystem
	serviceName      = "kube-dns" // required by Kubernetes' conformance tests
)

// RunService makes the Service lead to addr, calls ready, and leaves the Service when ctx ends.
func RunService(ctx context.Context, client kubernetes.Interface, serviceIP netip.Addr, addr netip.AddrPort, ready func()) error {
	if err := ensureService(ctx, client, serviceIP, addr); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	return nil
}

// ensureService makes the Service kube-system/kube-dns with the given cluster IP lead to addr. It is idempotent, and
// writes only differences.
func ensureService(ctx context.Context, client kubernetes.Interface, serviceIP netip.Addr, addr netip.AddrPort) error {
	err := nodeservice.Ensure(ctx, client, nodeservice.Service{
		Namespace: serviceNamespace, Name: serviceName, ClusterIP: serviceIP, Addr: addr.Addr(),
		Labels: map[string]string{"k8s-app": serviceName, "kubernetes.io/cluster-service": "true"},
		Ports: []nodeservice.Port{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, Target: addr.Port()},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, Target: addr.Port()},
		},
	})
	if err != nil {
		return fmt.Errorf("dns: %w", err)
	}
	return nil
}
