package translate

import (
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/policy"
)

// ServicesMap is the ConfigMap in a twin with the environment variables of home's Services. If it is outdated, it is
// written before a pod that uses it is sent.
const ServicesMap = "rivulet-home-services"

// LeaveToProvider makes the provider supply the pod's address at home, which is not known before the pod has a network:
// variables with it, and /etc/hosts, are read from a volume that the provider fills then. The address in the provider's
// API server is not home's.
func LeaveToProvider(s *corev1.PodSpec) {
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

// addressAtHome makes variables with the pod's address have the one at home.
func addressAtHome(env []corev1.EnvVar) {
	for i := range env {
		if from := env[i].ValueFrom; from != nil && from.FieldRef != nil && (from.FieldRef.FieldPath == "status.podIP" || from.FieldRef.FieldPath == "status.podIPs") {
			env[i].ValueFrom = &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: policy.HomeVolume, Path: policy.HomeAddressFile, Key: policy.HomeAddressKey}}
		}
	}
}

// WithSameAddresses keeps the addresses with which an away pod was sent.
func WithSameAddresses(want, have *corev1.PodTemplateSpec) {
	if v, told := have.Annotations[policy.HomeAddressesAnnotation]; told {
		want.Annotations[policy.HomeAddressesAnnotation] = v
		want.Spec.HostAliases = have.Spec.HostAliases
	}
}

// ServiceLinks are the variables that a kubelet at home would set for a namespace's Services
// (k8s.io/kubernetes/pkg/kubelet/envvars).
func ServiceLinks(services []corev1.Service) map[string]string {
	out := map[string]string{}
	add := func(name, value string) { out[name] = value }
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
