package twin

import (
	"context"
	"encoding/json"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
)

// Alter copies changes of the home pod to the away pod and to the template of its replacements: labels and annotations,
// which Services at home and away select by, and the fields that Kubernetes allows to change in a pod's spec
// (translate.SpecChange). A change of the spec is sent once, by the generation of the home pod; refused is the
// provider's refusal of it.
func (t *Twin) Alter(ctx context.Context, home *corev1.Pod, have, want translate.Wrapper) (refused, err error) {
	if have.Object().GetDeletionTimestamp() != nil {
		return nil, nil
	}
	was, is := have.Template(), translate.SameKind(have, want, home).Template()
	if p := translate.Current(t.PodsOf(home.UID)); p != nil && p.DeletionTimestamp == nil {
		if refused, err = t.alterPod(ctx, p, was, is); err != nil {
			return nil, err
		}
	}
	if have.Job != nil {
		return refused, t.alterJob(ctx, have, want)
	}
	if have.ReplicaSet == nil || maps.Equal(was.Labels, is.Labels) && maps.Equal(was.Annotations, is.Annotations) &&
		equality.Semantic.DeepEqual(was.Spec.HostAliases, is.Spec.HostAliases) {
		return refused, nil
	}
	set := have.ReplicaSet.DeepCopy()
	next := &set.Spec.Template
	if next.Annotations[policy.HomeGenerationAnnotation] != is.Annotations[policy.HomeGenerationAnnotation] {
		translate.TakeImages(next.Spec.Containers, is.Spec.Containers)
		translate.TakeImages(next.Spec.InitContainers, is.Spec.InitContainers)
		next.Spec.Tolerations = is.Spec.Tolerations
	}
	next.Labels, next.Annotations = is.Labels, is.Annotations
	// They differ after the Service that leads to home's API server was replaced.
	next.Spec.HostAliases = is.Spec.HostAliases
	_, err = t.client.AppsV1().ReplicaSets(t.Name).Update(ctx, set, metav1.UpdateOptions{})
	return refused, IgnoreGone(err)
}

// alterPod repeats a refused change without the spec.
func (t *Twin) alterPod(ctx context.Context, p *corev1.Pod, was, is *corev1.PodTemplateSpec) (refused, err error) {
	metadata, spec := map[string]any{}, map[string]any{}
	if labels := translate.Difference(p.Labels, was.Labels, is.Labels); len(labels) > 0 {
		metadata["labels"] = labels
	}
	if notes := translate.Difference(p.Annotations, was.Annotations, is.Annotations); len(notes) > 0 {
		metadata["annotations"] = notes
	}
	if p.Annotations[policy.HomeGenerationAnnotation] != is.Annotations[policy.HomeGenerationAnnotation] {
		spec = translate.SpecChange(&p.Spec, &was.Spec, &is.Spec)
	}
	if len(metadata)+len(spec) == 0 {
		return nil, nil
	}
	write := func(change map[string]any) error {
		patch, err := json.Marshal(change)
		if err != nil {
			return err
		}
		_, err = t.client.CoreV1().Pods(t.Name).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: policy.FieldManager})
		return IgnoreGone(err)
	}
	err = write(map[string]any{"metadata": metadata, "spec": spec})
	if len(spec) > 0 && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) {
		return err, write(map[string]any{"metadata": metadata})
	}
	return nil, err
}

// alterJob copies the deadline of a pod with restartPolicy OnFailure. A Job's template is immutable; the Job makes no
// second pod beside a living one.
func (t *Twin) alterJob(ctx context.Context, have, want translate.Wrapper) error {
	now, next := have.Job.Spec.ActiveDeadlineSeconds, want.Job.Spec.ActiveDeadlineSeconds
	if next == nil || now != nil && *now == *next {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"activeDeadlineSeconds": *next}})
	if err != nil {
		return err
	}
	_, err = t.client.BatchV1().Jobs(t.Name).Patch(ctx, have.Job.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: policy.FieldManager})
	return IgnoreGone(err)
}
