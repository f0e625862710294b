package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/addons/nodeservice"
)

const (
	serviceNamespace = metav1.NamespaceSystem
	serviceName      = "kube-dns" // required by Kubernetes' conformance tests
)

// RunService makes the Service lead to addr on the node, calls ready, and leaves the Service when ctx ends.
func RunService(ctx context.Context, client kubernetes.Interface, serviceIP netip.Addr, addr netip.AddrPort, node string, ready func()) error {
	if err := ensureService(ctx, client, serviceIP, addr, node); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	return nil
}

// ensureService makes the Service kube-system/kube-dns with the given cluster IP lead to addr. It is idempotent, and
// writes only differences.
func ensureService(ctx context.Context, client kubernetes.Interface, serviceIP netip.Addr, addr netip.AddrPort, node string) error {
	if err := nodeservice.Ensure(ctx, client, service(serviceIP, addr, node)); err != nil {
		return fmt.Errorf("dns: %w", err)
	}
	return nil
}

func service(ip netip.Addr, addr netip.AddrPort, node string) nodeservice.Service {
	return nodeservice.Service{
		Namespace: serviceNamespace, Name: serviceName, ClusterIP: ip, Addr: addr.Addr(), Node: node,
		Labels: map[string]string{"k8s-app": serviceName, "kubernetes.io/cluster-service": "true"},
		Ports: []nodeservice.Port{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, Target: addr.Port()},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, Target: addr.Port()},
		},
	}
}

// EnsureWorker makes the Service lead to one more node's DNS server, too. labels are of the EndpointSlice.
func EnsureWorker(ctx context.Context, client kubernetes.Interface, addr netip.AddrPort, node string, labels map[string]string) error {
	return nodeservice.EnsureEndpoint(ctx, client, service(netip.Addr{}, addr, node), labels)
}

// DropWorkers removes the EndpointSlices with the label of all nodes but those.
func DropWorkers(ctx context.Context, client kubernetes.Interface, label string, but map[string]bool) error {
	api := client.DiscoveryV1().EndpointSlices(serviceNamespace)
	list, err := api.List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range list.Items {
		if !but[strings.TrimPrefix(s.Name, serviceName+"-")] {
			errs = append(errs, api.Delete(ctx, s.Name, metav1.DeleteOptions{}))
		}
	}
	return errors.Join(errs...)
}
