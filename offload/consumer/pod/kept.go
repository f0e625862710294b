package pod

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/replacement"
)

// If the provider replaces pods itself (package replacement), a pod with restartPolicy Always needs no ReplicaSet: the
// away pod is its own record. A ReplicaSet is made if the provider refuses the pod, since a ReplicaSet waits for
// capacity by itself. Existing ReplicaSets stay.

// keeps reports whether the target replaces pods itself now.
func (c *Controller) keeps() bool { return c.cfg.Keeps != nil && c.cfg.Keeps() }

// asRecord is the pod that a ReplicaSet would make, as its own record.
func asRecord(w Wrapper, home *corev1.Pod) Wrapper {
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

// like converts want to the kind of wrapper that exists.
func like(have, want Wrapper, home *corev1.Pod) Wrapper {
	if have.Pod != nil && want.ReplicaSet != nil {
		return asRecord(want, home)
	}
	return want
}

// ending reports whether the wrapper is being deleted for good.
func (w Wrapper) ending() bool {
	return w.Object().GetDeletionTimestamp() != nil && (w.Pod == nil || !replacement.Kept(w.Pod))
}

// records lists the records with the index value, the current one of the home pod first.
func (t *twin) records(index, value string) []Wrapper {
	objs, _ := t.pods.GetIndexer().ByIndex(index, value)
	var pods []*corev1.Pod
	for _, o := range objs {
		if p := o.(*corev1.Pod); replacement.IsRecord(p) {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		switch {
		case better(a, b):
			return -1
		case better(b, a):
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	out := make([]Wrapper, 0, len(pods))
	for _, p := range pods {
		out = append(out, Wrapper{Pod: p})
	}
	return out
}
