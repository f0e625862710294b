package translate

import (
	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/policy"
)

// A pod reads its own name, namespace and UID through the downward API. It needs those of home, so the references are
// redirected to where Wrap stores them. Addresses are not redirected here: see toldByProvider.
var redirected = map[string]string{
	"metadata.name":      "metadata.annotations['" + policy.HomePodAnnotation + "']",
	"metadata.namespace": "metadata.annotations['" + policy.HomeNamespaceAnnotation + "']",
	"metadata.uid":       "metadata.labels['" + policy.HomeUIDLabel + "']",
}

func redirectField(f *corev1.ObjectFieldSelector) {
	if f == nil {
		return
	}
	if to, ok := redirected[f.FieldPath]; ok {
		f.FieldPath = to
	}
}

func redirectEnv(env []corev1.EnvVar, home *corev1.Pod) {
	for i := range env {
		from := env[i].ValueFrom
		if from == nil || from.FieldRef == nil {
			continue
		}
		switch from.FieldRef.FieldPath {
		case "spec.nodeName":
			env[i] = corev1.EnvVar{Name: env[i].Name, Value: home.Spec.NodeName}
		case "spec.serviceAccountName":
			env[i] = corev1.EnvVar{Name: env[i].Name, Value: home.Spec.ServiceAccountName}
		default:
			redirectField(from.FieldRef)
		}
	}
}

func redirectVolumes(volumes []corev1.Volume) {
	for i := range volumes {
		if d := volumes[i].DownwardAPI; d != nil {
			redirectFiles(d.Items)
		}
		if p := volumes[i].Projected; p != nil {
			for j := range p.Sources {
				if d := p.Sources[j].DownwardAPI; d != nil {
					redirectFiles(d.Items)
				}
			}
		}
	}
}

func redirectFiles(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		redirectField(items[i].FieldRef)
	}
}
