package translate

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
)

// References are the Secrets and ConfigMaps of home that a pod needs on its target; none for one that has ended or may
// not run away. Admission has already added a service account's references to its spec.
func References(home *corev1.Pod) []policy.Reference {
	if Terminal(home.Status.Phase) || Refuse(home) != nil {
		return nil
	}
	all := map[policy.Object]policy.Reference{}
	add := func(kind, name string, optional *bool) {
		o := policy.Object{Kind: kind, Namespace: home.Namespace, Name: name}
		before, there := all[o]
		all[o] = policy.Reference{Object: o, Optional: ptr.Deref(optional, false) && (!there || before.Optional)}
	}
	container := func(env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for _, e := range env {
			if e.ValueFrom == nil {
				continue
			}
			if r := e.ValueFrom.SecretKeyRef; r != nil {
				add(policy.KindSecret, r.Name, r.Optional)
			}
			if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
				add(policy.KindConfigMap, r.Name, r.Optional)
			}
		}
		for _, f := range from {
			if r := f.SecretRef; r != nil {
				add(policy.KindSecret, r.Name, r.Optional)
			}
			if r := f.ConfigMapRef; r != nil {
				add(policy.KindConfigMap, r.Name, r.Optional)
			}
		}
	}
	for _, list := range [][]corev1.Container{home.Spec.InitContainers, home.Spec.Containers} {
		for i := range list {
			container(list[i].Env, list[i].EnvFrom)
		}
	}
	for i := range home.Spec.EphemeralContainers {
		container(home.Spec.EphemeralContainers[i].Env, home.Spec.EphemeralContainers[i].EnvFrom)
	}
	for _, s := range home.Spec.ImagePullSecrets { // optional to a kubelet
		add(policy.KindSecret, s.Name, ptr.To(true))
	}
	for i := range home.Spec.Volumes {
		v := &home.Spec.Volumes[i].VolumeSource
		if v.Secret != nil {
			add(policy.KindSecret, v.Secret.SecretName, v.Secret.Optional)
		}
		if v.ConfigMap != nil {
			add(policy.KindConfigMap, v.ConfigMap.Name, v.ConfigMap.Optional)
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.Secret != nil {
				add(policy.KindSecret, s.Secret.Name, s.Secret.Optional)
			}
			if s.ConfigMap != nil {
				add(policy.KindConfigMap, s.ConfigMap.Name, s.ConfigMap.Optional)
			}
		}
	}
	return slices.Collect(maps.Values(all))
}
