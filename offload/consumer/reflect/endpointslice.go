package reflect

import (
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/discovery/v1"
)

// sliceManager marks reflected slices, so that controllers of the target leave them alone.
const sliceManager = "rivulet.dev"

// endpointSlices translates with away, see target.Target.
func endpointSlices(away func(netip.Addr) (netip.Addr, bool)) kind[*discoveryv1.EndpointSlice] {
	k := of("EndpointSlice", &discoveryv1.EndpointSlice{}, func(c kubernetes.Interface, ns string) typed.EndpointSliceInterface {
		return c.DiscoveryV1().EndpointSlices(ns)
	})
	k.translate = func(home *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, bool) {
		return translateSlice(home, away)
	}
	k.merge = mergeSlice
	k.others = func(have *discoveryv1.EndpointSlice) bool {
		return have.Labels[discoveryv1.LabelManagedBy] != sliceManager
	}
	return k
}

// translateSlice keeps the endpoints that are reachable from the target, under their addresses there. Conditions are
// kept, serving and terminating as well, so that connections drain as at home. Names of nodes, zones and pods are
// dropped, since they have no meaning there.
func translateSlice(home *discoveryv1.EndpointSlice, away func(netip.Addr) (netip.Addr, bool)) (*discoveryv1.EndpointSlice, bool) {
	service := home.Labels[discoveryv1.LabelServiceName]
	if home.AddressType != discoveryv1.AddressTypeIPv4 || service == "" ||
		home.Namespace == metav1.NamespaceDefault && service == "kubernetes" {
		return nil, false
	}
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelManagedBy: sliceManager}},
		AddressType: home.AddressType,
	}
	for _, p := range home.Ports {
		out.Ports = append(out.Ports, *p.DeepCopy())
	}
	for _, e := range home.Endpoints {
		full := e.DeepCopy()
		kept := discoveryv1.Endpoint{Conditions: full.Conditions, Hostname: full.Hostname}
		for _, text := range e.Addresses {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			if there, ok := away(addr); ok {
				kept.Addresses = append(kept.Addresses, there.String())
			}
		}
		if len(kept.Addresses) > 0 {
			out.Endpoints = append(out.Endpoints, kept)
		}
	}
	return out, true
}

func mergeSlice(have, want *discoveryv1.EndpointSlice) bool {
	if have.AddressType != want.AddressType {
		return false
	}
	have.Endpoints, have.Ports = want.Endpoints, want.Ports
	return true
}
