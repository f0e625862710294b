package pod

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
)

// maxLinks bounds what the variables of Services may add to a container, bytes: a provider
// takes no pod of any size.
const maxLinks = 32 << 10

// withHomeAddresses makes the template one for a provider that translates home's addresses:
// what the pod is told of Services, and of itself (policy.HomeAddressesOfPods), are these. It
// is done once, when the pod is sent; the annotation has made, for good.
func (c *Controller) withHomeAddresses(ctx context.Context, home *corev1.Pod, t *corev1.PodTemplateSpec, made string) error {
	// From the API server's cache: a kubelet goes by one, too.
	cached := metav1.ListOptions{ResourceVersion: "0"}
	api, err := c.cfg.Home.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("offload: the address of home's API server: %w", err)
	}
	if t.Annotations == nil {
		t.Annotations = map[string]string{}
	}
	t.Annotations[policy.HomeAddressesAnnotation] = made
	if made == policy.HomeAddressesOfPods {
		toldByProvider(&t.Spec)
	}
	if last := len(t.Spec.HostAliases) - 1; last >= 0 && slices.Contains(t.Spec.HostAliases[last].Hostnames, homeapi.Host) { // see toHomeAPI
		t.Spec.HostAliases[last].IP = api.Spec.ClusterIP
	}
	if !ptr.Deref(t.Spec.EnableServiceLinks, true) {
		return nil
	}
	t.Spec.EnableServiceLinks = ptr.To(false) // the provider's are of its own addresses
	services, err := c.cfg.Home.CoreV1().Services(home.Namespace).List(ctx, cached)
	if err != nil {
		return fmt.Errorf("offload: the Services of the pod: %w", err)
	}
	links, size := serviceLinks(services.Items), 0
	for _, v := range links {
		size += len(v.Name) + len(v.Value)
	}
	if size > maxLinks {
		c.cfg.Recorder.Eventf(home, corev1.EventTypeWarning, "OffloadNoServiceLinks",
			"the variables of %d Services are too many for a pod that runs away, and are left out; use names, or enableServiceLinks: false", len(services.Items))
		return nil
	}
	for _, list := range [][]corev1.Container{t.Spec.InitContainers, t.Spec.Containers} {
		for i := range list {
			list[i].Env = behind(links, list[i].Env)
		}
	}
	return nil
}

// toldByProvider has the provider tell the pod its address at home, which is not known before
// the pod has a network: the variables that take it, and /etc/hosts, are read from a volume
// that the provider fills then. An address that the provider's API server shows is its own.
func toldByProvider(s *corev1.PodSpec) {
	s.Volumes = append(s.Volumes, corev1.Volume{Name: policy.HomeVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			addressAtHome(list[i].Env)
			own := func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == hostsFile }
			if !slices.ContainsFunc(list[i].VolumeMounts, own) {
				list[i].VolumeMounts = append(list[i].VolumeMounts, corev1.VolumeMount{Name: policy.HomeVolume, MountPath: hostsFile, SubPath: policy.HomeHostsFile})
			}
		}
	}
}

const hostsFile = "/etc/hosts"

// addressAtHome has variables that take the pod's address take the one at home.
func addressAtHome(env []corev1.EnvVar) {
	for i := range env {
		if from := env[i].ValueFrom; from != nil && from.FieldRef != nil && (from.FieldRef.FieldPath == "status.podIP" || from.FieldRef.FieldPath == "status.podIPs") {
			env[i].ValueFrom = &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: policy.HomeVolume, Path: policy.HomeAddressFile, Key: policy.HomeAddressKey}}
		}
	}
}

// behind puts the pod's own variables behind others, which they may refer to and override.
func behind(others, own []corev1.EnvVar) []corev1.EnvVar {
	var out []corev1.EnvVar
	for _, v := range others {
		if !slices.ContainsFunc(own, func(o corev1.EnvVar) bool { return o.Name == v.Name }) {
			out = append(out, v)
		}
	}
	return append(out, own...)
}

// withSameAddresses keeps of an away pod what it was told when it was sent.
func withSameAddresses(want, have *corev1.PodTemplateSpec) {
	if v, told := have.Annotations[policy.HomeAddressesAnnotation]; told {
		want.Annotations[policy.HomeAddressesAnnotation] = v
		want.Spec.HostAliases = have.Spec.HostAliases
	}
}

// serviceLinks are the variables that a kubelet at home would set for the Services of a
// namespace (k8s.io/kubernetes/pkg/kubelet/envvars).
func serviceLinks(services []corev1.Service) (out []corev1.EnvVar) {
	slices.SortFunc(services, func(a, b corev1.Service) int { return strings.Compare(a.Name, b.Name) })
	add := func(name, value string) { out = append(out, corev1.EnvVar{Name: name, Value: value}) }
	for _, s := range services {
		ip := s.Spec.ClusterIP
		if ip == "" || ip == corev1.ClusterIPNone || len(s.Spec.Ports) == 0 ||
			s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes" { // see toHomeAPI
			continue
		}
		name := variable(s.Name)
		add(name+"_SERVICE_HOST", ip)
		add(name+"_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port)))
		for _, p := range s.Spec.Ports {
			if p.Name != "" {
				add(name+"_SERVICE_PORT_"+variable(p.Name), strconv.Itoa(int(p.Port)))
			}
		}
		for i, p := range s.Spec.Ports {
			protocol, port := corev1.ProtocolTCP, strconv.Itoa(int(p.Port))
			if p.Protocol != "" {
				protocol = p.Protocol
			}
			url := strings.ToLower(string(protocol)) + "://" + ip + ":" + port
			if i == 0 {
				add(name+"_PORT", url)
			}
			prefix := name + "_PORT_" + port + "_" + string(protocol)
			add(prefix, url)
			add(prefix+"_PROTO", strings.ToLower(string(protocol)))
			add(prefix+"_PORT", port)
			add(prefix+"_ADDR", ip)
		}
	}
	return out
}

func variable(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
