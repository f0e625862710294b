package reflect

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"

	"rivulet/offload/policy"
)

// services translates the names in aliases with twinOf.
func services(twinOf func(home string) (string, bool)) kind[*corev1.Service] {
	k := of("Service", &corev1.Service{}, func(c kubernetes.Interface, ns string) typed.ServiceInterface {
		return c.CoreV1().Services(ns)
	})
	k.translate = func(home *corev1.Service) (*corev1.Service, bool) {
		s, ok := translateService(home)
		if ok && s.Spec.ExternalName != "" {
			s.Spec.ExternalName = translateAlias(s.Spec.ExternalName, twinOf)
		}
		return s, ok
	}
	k.merge = mergeService
	return k
}

// clusterSuffix is the end of the full names of Services.
const clusterSuffix = ".svc.cluster.local"

// translateAlias replaces the namespace in a Service's name by the one on the target: the DNS there resolves an alias
// by itself, without regard to its owner.
func translateAlias(name string, twinOf func(home string) (string, bool)) string {
	bare, ok := strings.CutSuffix(strings.ToLower(strings.TrimSuffix(name, ".")), clusterSuffix)
	at := strings.LastIndexByte(bare, '.')
	if !ok || at <= 0 {
		return name
	}
	twin, ok := twinOf(bare[at+1:])
	if !ok {
		return name
	}
	return bare[:at+1] + twin + clusterSuffix
}

// translateService keeps what clients inside a cluster use of a Service: its name, ports, affinity, and whether it is
// headless or an alias. It has no selector (its endpoints are reflected), no address of home, and nothing that would
// expose it on the target.
func translateService(home *corev1.Service) (*corev1.Service, bool) {
	if home.Namespace == metav1.NamespaceDefault && home.Name == "kubernetes" {
		return nil, false // every cluster has its own
	}
	in := home.Spec
	out := corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, SessionAffinity: in.SessionAffinity,
		SessionAffinityConfig: in.SessionAffinityConfig.DeepCopy(), PublishNotReadyAddresses: in.PublishNotReadyAddresses,
	}
	switch {
	case in.Type == corev1.ServiceTypeExternalName:
		out.Type, out.ExternalName = in.Type, in.ExternalName
	case in.ClusterIP == corev1.ClusterIPNone:
		out.ClusterIP = corev1.ClusterIPNone
	}
	for _, p := range in.Ports {
		p.NodePort = 0
		out.Ports = append(out.Ports, *p.DeepCopy())
	}
	s := &corev1.Service{Spec: out}
	setHomeAddress(s, in.ClusterIP)
	return s, true
}

// setHomeAddress adds the Service's address at home, for targets that translate it.
func setHomeAddress(s *corev1.Service, ip string) {
	if ip != "" && ip != corev1.ClusterIPNone {
		s.Annotations = map[string]string{policy.HomeAddressAnnotation: ip}
	}
}

func mergeService(have, want *corev1.Service) bool {
	if shape(have) != shape(want) {
		return false
	}
	// Set on the target by defaults or allocation: addresses, families, policies.
	spec := have.Spec
	spec.Ports, spec.ExternalName, spec.Selector = want.Spec.Ports, want.Spec.ExternalName, want.Spec.Selector
	spec.PublishNotReadyAddresses = want.Spec.PublishNotReadyAddresses
	if want.Spec.SessionAffinity != "" {
		spec.SessionAffinity, spec.SessionAffinityConfig = want.Spec.SessionAffinity, want.Spec.SessionAffinityConfig
	}
	spec.Type, spec.ExternalIPs, spec.LoadBalancerIP, spec.LoadBalancerSourceRanges = want.Spec.Type, nil, "", nil
	have.Spec = spec
	return true
}

// shape is the immutable part.
func shape(s *corev1.Service) string {
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		return "alias"
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		return "headless"
	}
	return "address"
}
