package translate

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/replacement"
)

// AsRecord is the pod that a ReplicaSet would make, as its own record.
func AsRecord(w Wrapper, home *corev1.Pod) Wrapper {
	t := w.ReplicaSet.Spec.Template.DeepCopy()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: w.ReplicaSet.Name, Labels: t.Labels, Annotations: t.Annotations}, Spec: t.Spec}
	replacement.Keep(p, mode(home))
	return Wrapper{Pod: p}
}

// mode reports whether two pods may run for one for a moment, as they may with a ReplicaSet at home only.
func mode(home *corev1.Pod) replacement.Mode {
	if c := metav1.GetControllerOf(home); c != nil && c.Kind == "ReplicaSet" {
		return replacement.AtOnce
	}
	return replacement.AfterEnd
}

// SameKind converts want to the kind of wrapper that exists.
func SameKind(have, want Wrapper, home *corev1.Pod) Wrapper {
	if have.Pod != nil && want.ReplicaSet != nil {
		return AsRecord(want, home)
	}
	return want
}
