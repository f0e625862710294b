package translate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/homeapi"
)

// toHomeAPI puts home's API server where a pod expects its cluster's: in KUBERNETES_SERVICE_* and under the names of
// Service kubernetes. api is the address of the Service that leads there. The names are in /etc/hosts, because that
// works with every DNS policy of a pod; the certificate of home's API server has these names, and not the address.
func toHomeAPI(s *corev1.PodSpec, namespace, api string) {
	names := []string{homeapi.Host, homeapi.Host + ".cluster.local", "kubernetes.default"}
	if namespace == metav1.NamespaceDefault {
		names = append(names, "kubernetes")
	}
	// Last, since the pod's own entries take precedence.
	s.HostAliases = append(s.HostAliases, corev1.HostAlias{IP: api, Hostnames: names})
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			DerivedFrom(homeapi.Variables, &list[i])
			passProxy(&list[i])
		}
	}
}

// passProxy adds the name of home's API server to the hosts that the container's own variables have programs reach
// without a proxy: at home these have the API server's address, in a range, and away its variable is a name.
func passProxy(c *corev1.Container) {
	for i := range c.Env {
		if e := &c.Env[i]; strings.EqualFold(e.Name, "NO_PROXY") && e.Value != "" && e.Value != "*" &&
			!slices.Contains(strings.FieldsFunc(e.Value, func(r rune) bool { return r == ',' || r == ' ' }), homeapi.Host) {
			e.Value += "," + homeapi.Host
		}
	}
}

// DerivedFrom makes the container take variables from a ConfigMap of the twin, before its own sources: derived
// variables have the lowest precedence, and others may refer to them.
func DerivedFrom(configMap string, c *corev1.Container) {
	c.EnvFrom = slices.Insert(c.EnvFrom, 0, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: configMap}}})
}

// Derives reports whether the containers of the pod take variables from that ConfigMap.
func Derives(s *corev1.PodSpec, configMap string) bool {
	return slices.ContainsFunc(s.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.EnvFrom, func(from corev1.EnvFromSource) bool {
			return from.ConfigMapRef != nil && from.ConfigMapRef.Name == configMap
		})
	})
}

// homeAuthority redirects references to the certificate authority of the pod's own cluster: the ConfigMap of that name
// in the twin is the provider's.
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
