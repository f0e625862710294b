package pod

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
)

// references are the Secrets and ConfigMaps of home that a pod needs on its target; none for one that has ended or may
// not run away. Admission has already added a service account's references to its spec.
func references(home *corev1.Pod) []policy.Reference {
	if terminal(home.Status.Phase) || Refuse(home) != nil {
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

// byReference indexes the pods of home by what they refer to.
const byReference = "reference"

func indexReferences(obj any) (keys []string, _ error) {
	for o := range objects(obj) {
		keys = append(keys, referenceKey(o))
	}
	return keys, nil
}

func referenceKey(o policy.Object) string { return o.Kind + "/" + o.Namespace + "/" + o.Name }

// objects are those that a pod refers to; none for nil.
func objects(obj any) map[policy.Object]bool {
	out := map[policy.Object]bool{}
	if p, ok := obj.(*corev1.Pod); ok {
		for _, r := range references(p) {
			out[r.Object] = true
		}
	}
	return out
}

// Refers reports whether a pod that is bound to the target refers to the object; known is false until all pods were
// listed.
func (c *Controller) Refers(o policy.Object) (refers, known bool) {
	known = true
	for _, inf := range c.pods.informers() {
		if keys, err := inf.GetIndexer().IndexKeys(byReference, referenceKey(o)); err == nil && len(keys) > 0 {
			return true, true
		}
		known = known && inf.HasSynced()
	}
	return false, known
}

// unrefer reports the objects that was refers to and is does not.
func (c *Controller) unrefer(was, is any) {
	if c.cfg.Unreferred == nil {
		return
	}
	before, now := objects(was), objects(is)
	for o := range before {
		if !now[o] {
			c.cfg.Unreferred(o)
		}
	}
}

// bring waits until the target has what the pod refers to.
func (c *Controller) bring(ctx context.Context, home *corev1.Pod) error {
	if c.cfg.Bring == nil {
		return nil
	}
	return c.cfg.Bring(ctx, references(home))
}
