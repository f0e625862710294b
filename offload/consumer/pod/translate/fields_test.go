package translate

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// A fate is what becomes of a field of a pod that goes away. docs/design/offload.md has the
// same for people.
type fate int

const (
	same    fate = iota + 1 // the away pod has it as it is
	changed                 // translated; tests of its own say how
	dropped                 // means something only at home
	refused                 // the pod does not go away, and the field is named
)

// fates of all fields that Kubernetes knows. One that is not here has come with a
// newer Kubernetes: think, write it down here and in docs/design/offload.md, and if need be
// in awaySpec or refuse. (Unknown fields are kept, and the provider judges them.)
var fates = map[reflect.Type]map[string]fate{
	reflect.TypeFor[corev1.PodSpec](): {
		"Volumes": changed, "InitContainers": changed, "Containers": changed, "EphemeralContainers": changed, "RestartPolicy": same,
		"TerminationGracePeriodSeconds": same, "ActiveDeadlineSeconds": changed, "DNSPolicy": same, "NodeSelector": changed,
		"ServiceAccountName": changed, "DeprecatedServiceAccount": changed, "AutomountServiceAccountToken": changed, "NodeName": dropped,
		"HostNetwork": refused, "HostPID": refused, "HostIPC": refused, "ShareProcessNamespace": same, "SecurityContext": same,
		"ImagePullSecrets": same, "Hostname": same, "Subdomain": same, "Affinity": dropped, "SchedulerName": dropped, "Tolerations": changed,
		"HostAliases": same, "PriorityClassName": dropped, "Priority": dropped, "DNSConfig": same, "ReadinessGates": changed,
		"RuntimeClassName": same, "EnableServiceLinks": same, "PreemptionPolicy": dropped, "Overhead": dropped, "TopologySpreadConstraints": dropped,
		"SetHostnameAsFQDN": changed, "OS": same, "HostUsers": same, "SchedulingGates": dropped, "ResourceClaims": refused, "Resources": same,
		"HostnameOverride": same, "WorkloadRef": dropped,
	},
	reflect.TypeFor[corev1.Container](): {
		"Name": same, "Image": same, "Command": same, "Args": same, "WorkingDir": same, "Ports": same, "EnvFrom": changed, "Env": changed,
		"Resources": same, "ResizePolicy": same, "RestartPolicy": same, "RestartPolicyRules": same, "VolumeMounts": same, "VolumeDevices": same,
		"LivenessProbe": same, "ReadinessProbe": same, "StartupProbe": same, "Lifecycle": same, "TerminationMessagePath": same,
		"TerminationMessagePolicy": same, "ImagePullPolicy": same, "SecurityContext": same, "Stdin": same, "StdinOnce": same, "TTY": same,
	},
	reflect.TypeFor[corev1.SecurityContext](): {
		"Capabilities": same, "Privileged": refused, "SELinuxOptions": same, "WindowsOptions": same, "RunAsUser": same, "RunAsGroup": same,
		"RunAsNonRoot": same, "ReadOnlyRootFilesystem": same, "AllowPrivilegeEscalation": same, "ProcMount": same, "SeccompProfile": same, "AppArmorProfile": same,
	},
	reflect.TypeFor[corev1.ContainerPort](): {
		"Name": same, "HostPort": refused, "ContainerPort": same, "Protocol": same, "HostIP": same,
	},
	reflect.TypeFor[corev1.HTTPGetAction](): {
		"Path": same, "Port": same, "Host": refused, "Scheme": same, "HTTPHeaders": same,
	},
	reflect.TypeFor[corev1.TCPSocketAction](): {
		"Port": same, "Host": refused,
	},
	reflect.TypeFor[corev1.VolumeSource](): {
		"HostPath": refused, "EmptyDir": same, "GCEPersistentDisk": refused, "AWSElasticBlockStore": refused, "GitRepo": refused, "Secret": same,
		"NFS": refused, "ISCSI": refused, "Glusterfs": refused, "PersistentVolumeClaim": changed, "RBD": refused, "FlexVolume": refused, "Cinder": refused,
		"CephFS": refused, "Flocker": refused, "DownwardAPI": changed, "FC": refused, "AzureFile": refused, "ConfigMap": changed, "VsphereVolume": refused,
		"Quobyte": refused, "AzureDisk": refused, "PhotonPersistentDisk": refused, "Projected": changed, "PortworxVolume": refused, "ScaleIO": refused,
		"StorageOS": refused, "CSI": refused, "Ephemeral": changed, "Image": same,
	},
	reflect.TypeFor[corev1.VolumeProjection](): {
		"Secret": same, "DownwardAPI": changed, "ConfigMap": changed, "ServiceAccountToken": changed, "ClusterTrustBundle": refused, "PodCertificate": refused,
	},
	reflect.TypeFor[corev1.EnvVarSource](): {
		"FieldRef": changed, "ResourceFieldRef": same, "ConfigMapKeyRef": changed, "SecretKeyRef": same, "FileKeyRef": same,
	},
}

// where a value of each type stands in a pod.
var places = map[reflect.Type]func(*corev1.PodSpec) reflect.Value{
	reflect.TypeFor[corev1.PodSpec]():       func(s *corev1.PodSpec) reflect.Value { return reflect.ValueOf(s).Elem() },
	reflect.TypeFor[corev1.Container]():     func(s *corev1.PodSpec) reflect.Value { return reflect.ValueOf(&s.Containers[0]).Elem() },
	reflect.TypeFor[corev1.ContainerPort](): func(s *corev1.PodSpec) reflect.Value { return reflect.ValueOf(&s.Containers[0].Ports[0]).Elem() },
	reflect.TypeFor[corev1.SecurityContext](): func(s *corev1.PodSpec) reflect.Value {
		return reflect.ValueOf(s.Containers[0].SecurityContext).Elem()
	},
	reflect.TypeFor[corev1.HTTPGetAction](): func(s *corev1.PodSpec) reflect.Value {
		return reflect.ValueOf(s.Containers[0].LivenessProbe.HTTPGet).Elem()
	},
	reflect.TypeFor[corev1.TCPSocketAction](): func(s *corev1.PodSpec) reflect.Value {
		return reflect.ValueOf(s.Containers[0].Lifecycle.PreStop.TCPSocket).Elem()
	},
	reflect.TypeFor[corev1.VolumeSource](): func(s *corev1.PodSpec) reflect.Value { return reflect.ValueOf(&s.Volumes[0].VolumeSource).Elem() },
	reflect.TypeFor[corev1.VolumeProjection](): func(s *corev1.PodSpec) reflect.Value {
		return reflect.ValueOf(&s.Volumes[1].Projected.Sources[0]).Elem()
	},
	reflect.TypeFor[corev1.EnvVarSource](): func(s *corev1.PodSpec) reflect.Value { return reflect.ValueOf(s.Containers[0].Env[0].ValueFrom).Elem() },
}

// plain is a pod with a place for everything and nothing in it.
func plain() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "lab", UID: "u"}, Spec: corev1.PodSpec{
		Hostname: "h", RestartPolicy: corev1.RestartPolicyAlways,
		Containers: []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{}}, SecurityContext: &corev1.SecurityContext{},
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{}}},
			Lifecycle:     &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{}}},
			Env:           []corev1.EnvVar{{Name: "E", ValueFrom: &corev1.EnvVarSource{}}}}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{}},
			{Name: "w", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{}}}}}},
	}}
}

func TestNoFieldIsForgotten(t *testing.T) {
	for typ, known := range fates {
		seen := map[string]bool{}
		for i := range typ.NumField() {
			name := typ.Field(i).Name
			seen[name] = true
			want, ok := known[name]
			if !ok {
				t.Errorf("%s.%s is new: what becomes of it away from home?", typ.Name(), name)
				continue
			}
			if want == changed {
				continue
			}
			p := plain()
			if typ != reflect.TypeFor[corev1.VolumeSource]() {
				p.Spec.Volumes[0].EmptyDir = &corev1.EmptyDirVolumeSource{}
			}
			field := places[typ](&p.Spec).Field(i)
			fill(field, 6)
			harmless(p, name)
			w, err := Wrap(p, "home-id", "")
			path := strings.Split(typ.Field(i).Tag.Get("json"), ",")[0]
			switch {
			case want == refused:
				if typ == reflect.TypeFor[corev1.VolumeSource]() {
					path = "spec.volumes[0]"
				} else if typ == reflect.TypeFor[corev1.VolumeProjection]() {
					path = "projected.sources[0]"
				}
				if err == nil || !strings.Contains(err.Error(), path) {
					t.Errorf("%s.%s is to be refused by name (%s): %v", typ.Name(), name, path, err)
				}
			case err != nil:
				t.Errorf("%s.%s: %v", typ.Name(), name, err)
			case want == same:
				if got := places[typ](&w.Template().Spec).Field(i).Interface(); !equality.Semantic.DeepEqual(got, field.Interface()) {
					t.Errorf("%s.%s is %v away, %v at home", typ.Name(), name, got, field.Interface())
				}
			case want == dropped:
				if got := places[typ](&w.Template().Spec).Field(i); !got.IsZero() {
					t.Errorf("%s.%s was to stay at home: %v", typ.Name(), name, got)
				}
			}
		}
		for name := range known {
			if !seen[name] {
				t.Errorf("Kubernetes has no %s.%s any more", typ.Name(), name)
			}
		}
	}
}

// harmless takes out of a filled field what is refused for reasons of its own.
func harmless(p *corev1.Pod, field string) {
	c := &p.Spec.Containers[0]
	switch field {
	case "OS":
		p.Spec.OS.Name = corev1.Linux
	case "Ports":
		c.Ports[0].HostPort = 0
	case "SecurityContext":
		if c.SecurityContext != nil {
			c.SecurityContext.Privileged = nil
		}
	case "LivenessProbe", "ReadinessProbe", "StartupProbe":
		for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if probe != nil && probe.TCPSocket != nil {
				probe.HTTPGet.Host, probe.TCPSocket.Host = "", ""
			}
		}
	case "Lifecycle":
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			h.HTTPGet.Host, h.TCPSocket.Host = "", ""
		}
	case "RestartPolicy":
		if p.Spec.RestartPolicy == "x" {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
		}
	case "Privileged":
		c.SecurityContext.Privileged = ptr.To(true)
	}
}

// fill gives every part of a value something.
func fill(v reflect.Value, depth int) {
	if depth == 0 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth-1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), depth-1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth-1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth-1)
		fill(value, depth-1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8:
		v.SetUint(1)
	}
}
