package translate

import (
	"fmt"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/policy"
)

// Refusal is why a pod cannot run away. It has every field that is refused, so that the user can correct all of them at
// once.
type Refusal struct {
	Fields []RefusedField
}

// RefusedField is one field that has no meaning on another cluster.
type RefusedField struct {
	Path string // as in the pod's YAML
	Why  string
}

func (r *Refusal) Error() string {
	parts := make([]string, len(r.Fields))
	for i, f := range r.Fields {
		parts[i] = f.Path + " (" + f.Why + ")"
	}
	return "offload: this pod cannot run on another cluster because of " + strings.Join(parts, ", ") +
		"; remove the field, or keep the pod at home with the label rivulet.dev/offload=off in its template"
}

// Refuse returns nil if the pod can run away.
func Refuse(p *corev1.Pod) *Refusal {
	r := &Refusal{}
	add := func(path, why string) { r.Fields = append(r.Fields, RefusedField{path, why}) }

	s := &p.Spec
	for _, f := range []struct {
		set       bool
		path, why string
	}{
		{s.HostNetwork, "spec.hostNetwork", "the host's network is home's"},
		{s.HostPID, "spec.hostPID", "the host's processes are home's"},
		{s.HostIPC, "spec.hostIPC", "the host's IPC is home's"},
		{s.OS != nil && s.OS.Name != corev1.Linux, "spec.os", "targets run Linux"},
		{len(s.Containers)+len(s.InitContainers) > policy.MostContainers, "spec.containers", fmt.Sprintf("a provider takes %d at most, with spec.initContainers: divide the pod", policy.MostContainers)},
		{len(s.ResourceClaims) > 0, "spec.resourceClaims", "devices claimed at home are not elsewhere"},
	} {
		if f.set {
			add(f.path, f.why)
		}
	}
	for i := range s.InitContainers {
		refuseContainer(fmt.Sprintf("spec.initContainers[%d]", i), &s.InitContainers[i], add)
	}
	for i := range s.Containers {
		refuseContainer(fmt.Sprintf("spec.containers[%d]", i), &s.Containers[i], add)
	}
	for i := range s.Volumes {
		refuseVolume(fmt.Sprintf("spec.volumes[%d]", i), &s.Volumes[i], add)
	}
	if len(r.Fields) == 0 {
		return nil
	}
	return r
}

func refuseContainer(path string, c *corev1.Container, add func(path, why string)) {
	refuseImage(path+".image", c.Image, add)
	if sc := c.SecurityContext; sc != nil && sc.Privileged != nil && *sc.Privileged {
		add(path+".securityContext.privileged", "no provider gives its host away")
	}
	for i, p := range c.Ports {
		if p.HostPort != 0 {
			add(fmt.Sprintf("%s.ports[%d].hostPort", path, i), "the port would open on another cluster's host: use a Service")
		}
	}
	for _, p := range []struct {
		name string
		is   *corev1.Probe
	}{{"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}, {"startupProbe", c.StartupProbe}} {
		if p.is != nil {
			refuseHost(path+"."+p.name, p.is.HTTPGet, p.is.TCPSocket, add)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []struct {
			name string
			is   *corev1.LifecycleHandler
		}{{"postStart", c.Lifecycle.PostStart}, {"preStop", c.Lifecycle.PreStop}} {
			if h.is != nil {
				refuseHost(path+".lifecycle."+h.name, h.is.HTTPGet, h.is.TCPSocket, add)
			}
		}
	}
}

func refuseImage(path, image string, add func(path, why string)) {
	if utf8.RuneCountInString(image) > policy.MostImage {
		add(path, fmt.Sprintf("a provider takes names of %d characters at most: give the image a shorter one", policy.MostImage))
	}
}

// refuseHost refuses actions by which the provider's kubelet would connect to a host of the pod's choice: Pod
// Security's baseline forbids them there, whatever the host.
func refuseHost(path string, get *corev1.HTTPGetAction, tcp *corev1.TCPSocketAction, add func(path, why string)) {
	const why = "a provider's kubelet connects to the pod itself and to no other host: use exec for that"
	if get != nil && get.Host != "" {
		add(path+".httpGet.host", why)
	}
	if tcp != nil && tcp.Host != "" {
		add(path+".tcpSocket.host", why)
	}
}

func refuseVolume(path string, v *corev1.Volume, add func(path, why string)) {
	switch s := &v.VolumeSource; {
	case s.Image != nil:
		refuseImage(path+".image.reference", s.Image.Reference, add)
	case s.ConfigMap != nil, s.Secret != nil, s.EmptyDir != nil, s.DownwardAPI != nil, s.PersistentVolumeClaim != nil, s.Ephemeral != nil:
	case s.Projected != nil:
		for i, src := range s.Projected.Sources {
			path := fmt.Sprintf("%s.projected.sources[%d]", path, i)
			if src.ClusterTrustBundle != nil || src.PodCertificate != nil {
				add(path, "certificates of home are not sent away")
			}
		}
	case s.HostPath != nil:
		add(path+".hostPath", "the path is on home's disk")
	case s.CSI != nil:
		add(path+".csi", "the driver is home's")
	default:
		add(path, "only configMap, secret, projected, downwardAPI, emptyDir, persistentVolumeClaim, ephemeral and image volumes work away")
	}
}
