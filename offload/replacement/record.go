package replacement

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
)

// Finalizer is on a pod that is replaced when it is deleted.
const Finalizer = "rivulet.dev/kept"

// Mode is when a pod's successor may start. It is the value of policy.KeptLabel.
type Mode string

const (
	// AtOnce: while the pod ends, as with a ReplicaSet.
	AtOnce Mode = "at-once"
	// AfterEnd: after it has ended, for pods that must not run twice.
	AfterEnd Mode = "after-end"
)

const (
	// transferredAnnotation lists the keys of labels and annotations from home; others are the provider's, and are not
	// copied to a successor.
	transferredAnnotation = "rivulet.dev/carried"
	// baseAnnotation is the base of the names of successors.
	baseAnnotation = "rivulet.dev/kept-as"
	// markAnnotation is the name of the successor that exists or is about to be made.
	markAnnotation = "rivulet.dev/successor"
	// predecessorAnnotation is how the predecessor ended, and how many have failed in a row.
	predecessorAnnotation = "rivulet.dev/predecessor"
)

// Keep makes a record of a pod that is about to be created. A successor has the same labels and annotations.
func Keep(p *corev1.Pod, mode Mode) {
	p.Finalizers = append(p.Finalizers, Finalizer)
	p.Annotations[transferredAnnotation] = encode(p.Labels) + ";" + encode(p.Annotations)
	p.Labels[policy.KeptLabel] = string(mode)
}

func encode(m map[string]string) string {
	keys := slices.Sorted(maps.Keys(m))
	return strings.Join(slices.DeleteFunc(keys, own), ",")
}

// own are keys of this package.
func own(key string) bool {
	switch key {
	case policy.KeptLabel, transferredAnnotation, baseAnnotation, markAnnotation, predecessorAnnotation:
		return true
	}
	return false
}

// Transferred returns the labels and annotations of a record that are from home or make it a record.
func Transferred(p *corev1.Pod) (labels, annotations map[string]string) {
	ofLabels, ofAnnotations, _ := strings.Cut(p.Annotations[transferredAnnotation], ";")
	labels, annotations = only(p.Labels, ofLabels), only(p.Annotations, ofAnnotations)
	if mode, ok := p.Labels[policy.KeptLabel]; ok {
		labels[policy.KeptLabel] = mode
	}
	if list, ok := p.Annotations[transferredAnnotation]; ok {
		annotations[transferredAnnotation] = list
	}
	return labels, annotations
}

func only(m map[string]string, keys string) map[string]string {
	out := map[string]string{}
	for key := range strings.SplitSeq(keys, ",") {
		if v, ok := m[key]; ok {
			out[key] = v
		}
	}
	return out
}

// IsRecord reports whether the pod was made by Keep, whether or not it was released.
func IsRecord(p *corev1.Pod) bool { return p.Labels[policy.KeptLabel] != "" }

// Kept reports whether the pod is replaced when it is deleted.
func Kept(p *corev1.Pod) bool { return IsRecord(p) && slices.Contains(p.Finalizers, Finalizer) }

// Ended reports whether nothing of the pod runs any more, as far as can be determined: a forced deletion counts as its
// end.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed ||
		p.DeletionTimestamp != nil && ptr.Deref(p.DeletionGracePeriodSeconds, 1) == 0
}

// Due reports whether a successor is wanted and may start.
func Due(p *corev1.Pod) bool {
	return Kept(p) && (Ended(p) || p.DeletionTimestamp != nil && p.Labels[policy.KeptLabel] == string(AtOnce))
}

// Successor is the pod that replaces one. It is pure: the same pod has always the same successor, and different pods
// have different ones.
func Successor(p *corev1.Pod) *corev1.Pod {
	base := p.Annotations[baseAnnotation]
	if base == "" {
		base = p.Name
	}
	sum := sha256.Sum256([]byte(p.UID))
	labels, annotations := Transferred(p)
	next := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: base + "-" + hex.EncodeToString(sum[:4]), Namespace: p.Namespace,
			Labels: labels, Annotations: annotations, Finalizers: []string{Finalizer}},
		Spec: *p.Spec.DeepCopy(),
	}
	next.Annotations[baseAnnotation] = base
	if end, err := json.Marshal(EndOf(p)); err == nil {
		next.Annotations[predecessorAnnotation] = string(end)
	}
	s := &next.Spec
	// These were decided for the one pod, or are added by admission to each.
	s.NodeName, s.Affinity, s.EphemeralContainers = "", nil, nil
	s.Priority, s.PreemptionPolicy, s.Overhead = nil, nil, nil
	return next
}

// Waiting is the ReplicaSet that makes the pod when there is capacity for it.
func Waiting(next *corev1.Pod) *appsv1.ReplicaSet {
	uid := next.Labels[policy.HomeUIDLabel]
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(next.Labels), Annotations: maps.Clone(next.Annotations)}, Spec: next.Spec}
	for _, m := range []map[string]string{template.Labels, template.Annotations} {
		maps.DeleteFunc(m, func(key, _ string) bool { return own(key) })
	}
	ties := only(next.Labels, policy.OriginLabel+","+policy.HomeUIDLabel)
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: next.Annotations[baseAnnotation], Namespace: next.Namespace, Labels: ties,
			Annotations: only(next.Annotations, policy.HomeNamespaceAnnotation+","+policy.HomePodAnnotation)},
		Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](1), Template: template,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{policy.HomeUIDLabel: uid}}},
	}
}
