package pod

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
)

// servicesMap is the ConfigMap in a twin with the environment variables of home's Services. If it is outdated, it is
// written before a pod that uses it is sent.
const servicesMap = "rivulet-home-services"

// maxLinks bounds the variables of Services, in bytes: a provider refuses ConfigMaps above a size.
const maxLinks = 512 << 10

// withHomeAddresses adapts the template to a provider that translates home's addresses: the addresses that the pod gets
// of Services and of itself (policy.HomeAddressesOfPods) are home's. This is decided once, when the pod is sent, and
// recorded in the annotation.
func (c *Controller) withHomeAddresses(ctx context.Context, home *corev1.Pod, in *twin, t *corev1.PodTemplateSpec, made string) error {
	api, err := c.cfg.Home.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("offload: the address of home's API server: %w", err)
	}
	if t.Annotations == nil {
		t.Annotations = map[string]string{}
	}
	t.Annotations[policy.HomeAddressesAnnotation] = made
	if made == policy.HomeAddressesOfPods {
		leaveToProvider(&t.Spec)
	}
	if last := len(t.Spec.HostAliases) - 1; last >= 0 && slices.Contains(t.Spec.HostAliases[last].Hostnames, homeapi.Host) { // see toHomeAPI
		t.Spec.HostAliases[last].IP = api.Spec.ClusterIP
	}
	if !ptr.Deref(t.Spec.EnableServiceLinks, true) {
		return nil
	}
	t.Spec.EnableServiceLinks = ptr.To(false) // the provider's variables have its own addresses
	services, err := c.addServices(ctx, in, false)
	if err != nil {
		return err
	}
	if services > 0 {
		c.cfg.Recorder.Eventf(home, corev1.EventTypeWarning, "OffloadNoServiceLinks",
			"the variables of %d Services are too many for a pod that runs away, and are left out; use names, or enableServiceLinks: false", services)
		return nil
	}
	for _, list := range [][]corev1.Container{t.Spec.InitContainers, t.Spec.Containers} {
		for i := range list {
			derivedFrom(servicesMap, &list[i])
		}
	}
	return nil
}

// links are the variables last written into a twin.
type links struct {
	mu   sync.Mutex
	data map[string]string
	at   time.Time
}

// addServices writes the variables of home's Services into the twin, unless they are there; afresh skips the memory of
// the last write. tooMany is not zero if they are too large to be written.
func (c *Controller) addServices(ctx context.Context, t *twin, afresh bool) (tooMany int, err error) {
	t.links.mu.Lock()
	defer t.links.mu.Unlock()
	// From the API server's cache, as for a kubelet.
	services, err := c.cfg.Home.CoreV1().Services(t.home).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, fmt.Errorf("offload: the Services of the pod: %w", err)
	}
	data, size := serviceLinks(services.Items), 0
	for name, value := range data {
		size += len(name) + len(value)
	}
	if size > maxLinks {
		return len(services.Items), nil
	}
	if !afresh && time.Since(t.links.at) < addressAge && maps.Equal(t.links.data, data) {
		return 0, nil
	}
	all := t.client.CoreV1().ConfigMaps(t.name)
	have, err := all.Get(ctx, servicesMap, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = all.Create(ctx, &corev1.ConfigMap{Data: data, ObjectMeta: metav1.ObjectMeta{Name: servicesMap,
			Labels: map[string]string{policy.OriginLabel: c.cfg.Cluster}}}, metav1.CreateOptions{FieldManager: policy.FieldManager})
	case err != nil:
	case have.Labels[policy.ReflectedLabel] != "":
		return 0, fmt.Errorf("offload: ConfigMap %s in %s has a name that is Rivulet's own; rename it", servicesMap, t.home)
	case !maps.Equal(have.Data, data):
		have.Data = data
		_, err = all.Update(ctx, have, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	}
	if err != nil {
		return 0, c.twinError(ctx, t, fmt.Errorf("offload: the variables of Services in the twin: %w", err))
	}
	t.links.data, t.links.at = data, time.Now()
	return 0, nil
}

// keepServices writes the variables again if a container of the pod cannot be created without them.
func (c *Controller) keepServices(ctx context.Context, t *twin, away *corev1.Pod) error {
	if away == nil || !derives(&away.Spec, servicesMap) {
		return nil
	}
	for _, st := range slices.Concat(away.Status.InitContainerStatuses, away.Status.ContainerStatuses) {
		if w := st.State.Waiting; w != nil && w.Reason == "CreateContainerConfigError" {
			_, err := c.addServices(ctx, t, true)
			return err
		}
	}
	return nil
}

// leaveToProvider makes the provider supply the pod's address at home, which is not known before the pod has a network:
// variables with it, and /etc/hosts, are read from a volume that the provider fills then. The address in the provider's
// API server is not home's.
func leaveToProvider(s *corev1.PodSpec) {
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

// withSameAddresses keeps the addresses with which an away pod was sent.
func withSameAddresses(want, have *corev1.PodTemplateSpec) {
	if v, told := have.Annotations[policy.HomeAddressesAnnotation]; told {
		want.Annotations[policy.HomeAddressesAnnotation] = v
		want.Spec.HostAliases = have.Spec.HostAliases
	}
}

// serviceLinks are the variables that a kubelet at home would set for a namespace's Services
// (k8s.io/kubernetes/pkg/kubelet/envvars).
func serviceLinks(services []corev1.Service) map[string]string {
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
