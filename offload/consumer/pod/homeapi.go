package pod

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/homeapi"
)

// toHomeAPI makes home's API server what an away pod finds where every pod finds
// its cluster's: in KUBERNETES_SERVICE_* and under the names of the Service
// kubernetes. api is the address of the Service that leads there. The names are in
// /etc/hosts, because that works whatever the pod's DNS policy is; the certificate
// of home's API server has them, and not the address.
func toHomeAPI(s *corev1.PodSpec, namespace, api string) {
	names := []string{homeapi.Host, homeapi.Host + ".cluster.local", "kubernetes.default"}
	if namespace == metav1.NamespaceDefault {
		names = append(names, "kubernetes")
	}
	// Last: what the pod itself says of a name comes first.
	s.HostAliases = append(s.HostAliases, corev1.HostAlias{IP: api, Hostnames: names})
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			list[i].Env = withHomeAPI(list[i].Env)
		}
	}
}

// withHomeAPI puts the variables in front, so that others may refer to them; those
// that the pod sets itself stay.
func withHomeAPI(env []corev1.EnvVar) []corev1.EnvVar {
	port := strconv.Itoa(homeapi.Port)
	url := "tcp://" + homeapi.Host + ":" + port
	set := map[string]bool{}
	for i := range env {
		set[env[i].Name] = true
	}
	var out []corev1.EnvVar
	for _, v := range []corev1.EnvVar{
		{Name: "KUBERNETES_SERVICE_HOST", Value: homeapi.Host},
		{Name: "KUBERNETES_SERVICE_PORT", Value: port},
		{Name: "KUBERNETES_SERVICE_PORT_HTTPS", Value: port},
		{Name: "KUBERNETES_PORT", Value: url},
		{Name: "KUBERNETES_PORT_443_TCP", Value: url},
		{Name: "KUBERNETES_PORT_443_TCP_ADDR", Value: homeapi.Host},
		{Name: "KUBERNETES_PORT_443_TCP_PORT", Value: port},
		{Name: "KUBERNETES_PORT_443_TCP_PROTO", Value: "tcp"},
	} {
		if !set[v.Name] {
			out = append(out, v)
		}
	}
	return append(out, env...)
}

// homeAuthority redirects what means the certificate authority of the pod's own
// cluster: the ConfigMap of that name in the twin is the provider's.
func homeAuthority(s *corev1.PodSpec) {
	for i := range s.Volumes {
		if m := s.Volumes[i].ConfigMap; m != nil {
			redirectName(&m.LocalObjectReference)
		}
		if p := s.Volumes[i].Projected; p != nil {
			for j := range p.Sources {
				if m := p.Sources[j].ConfigMap; m != nil {
					redirectName(&m.LocalObjectReference)
				}
			}
		}
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			redirectAuthority(&list[i])
		}
	}
}

func redirectAuthority(c *corev1.Container) {
	for i := range c.EnvFrom {
		if m := c.EnvFrom[i].ConfigMapRef; m != nil {
			redirectName(&m.LocalObjectReference)
		}
	}
	for i := range c.Env {
		if f := c.Env[i].ValueFrom; f != nil && f.ConfigMapKeyRef != nil {
			redirectName(&f.ConfigMapKeyRef.LocalObjectReference)
		}
	}
}

func redirectName(ref *corev1.LocalObjectReference) {
	if ref.Name == homeapi.RootCA {
		ref.Name = homeapi.Authority
	}
}
