package twin

import (
	"context"
	"encoding/json"
	"errors"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
	"rivulet/offload/replacement"
	"rivulet/offload/target"
)

// Get reads the wrapper from the API: caches may lag behind this process's writes.
func (t *Twin) Get(ctx context.Context, like translate.Wrapper) (translate.Wrapper, error) {
	name := like.Object().GetName()
	switch {
	case like.Job != nil:
		job, err := t.client.BatchV1().Jobs(t.Name).Get(ctx, name, metav1.GetOptions{})
		return translate.Wrapper{Job: job}, err
	case like.Pod != nil:
		p, err := t.client.CoreV1().Pods(t.Name).Get(ctx, name, metav1.GetOptions{})
		return translate.Wrapper{Pod: p}, err
	}
	set, err := t.client.AppsV1().ReplicaSets(t.Name).Get(ctx, name, metav1.GetOptions{})
	return translate.Wrapper{ReplicaSet: set}, err
}

// Find reads the pod's wrapper from the API, of whichever kind; like is the wrapper for a target that does not replace
// pods, and records: it may do so. Without a wrapper of this pod the error is that for like's kind.
func (t *Twin) Find(ctx context.Context, uid types.UID, like translate.Wrapper, records bool) (translate.Wrapper, error) {
	if like.ReplicaSet != nil && records {
		p, err := t.Get(ctx, translate.Wrapper{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: like.Object().GetName()}}})
		if err == nil && p.IsOf(uid) || err != nil && !apierrors.IsNotFound(err) {
			return p, err
		}
	}
	return t.Get(ctx, like)
}

// Away collects the state of one pod of home.
func (t *Twin) Away(uid types.UID, w translate.Wrapper) translate.Away {
	a := translate.OfWrapper(w)
	a.Pod, a.Last = translate.Current(t.PodsOf(uid)), t.ends.Get(uid)
	return a
}

// Stands reads from the API whether anything exists for the pod of home.
func (t *Twin) Stands(ctx context.Context, home *corev1.Pod) (bool, error) {
	pods, err := t.client.CoreV1().Pods(t.Name).List(ctx, metav1.ListOptions{LabelSelector: policy.HomeUIDLabel + "=" + string(home.UID)})
	if err != nil {
		return false, err
	}
	if len(pods.Items) > 0 {
		return true, nil
	}
	like := translate.Wrapper{ReplicaSet: &appsv1.ReplicaSet{}}
	if translate.RestartPolicy(home) != corev1.RestartPolicyAlways {
		like = translate.Wrapper{Job: &batchv1.Job{}}
	}
	like.Object().SetName(translate.WrapperName(home.Name))
	w, err := t.Get(ctx, like)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && w.IsOf(home.UID), err
}

// Rehearse creates the wrapper's pod by a dry run. The error is a refusal for good, or a translate.DroppedError.
func (t *Twin) Rehearse(ctx context.Context, w translate.Wrapper) error {
	template := w.Template()
	made, err := t.client.CoreV1().Pods(t.Name).Create(ctx, &corev1.Pod{Spec: template.Spec,
		ObjectMeta: metav1.ObjectMeta{Name: w.Object().GetName(), Labels: template.Labels, Annotations: template.Annotations}},
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil {
		return translate.Dropped(&template.Spec, &made.Spec)
	}
	if !replacement.ForGood(err) {
		return nil
	}
	return err
}

// Create makes the wrapper, and returns it as the API has it.
func (t *Twin) Create(ctx context.Context, w translate.Wrapper) (translate.Wrapper, error) {
	switch {
	case w.Job != nil:
		job, err := t.client.BatchV1().Jobs(t.Name).Create(ctx, w.Job, metav1.CreateOptions{})
		return translate.Wrapper{Job: job}, err
	case w.Pod != nil:
		p, err := t.client.CoreV1().Pods(t.Name).Create(ctx, w.Pod, metav1.CreateOptions{})
		return translate.Wrapper{Pod: p}, err
	}
	set, err := t.client.AppsV1().ReplicaSets(t.Name).Create(ctx, w.ReplicaSet, metav1.CreateOptions{})
	return translate.Wrapper{ReplicaSet: set}, err
}

// Debug adds an ephemeral container to an away pod.
func (t *Twin) Debug(ctx context.Context, p *corev1.Pod, c *corev1.EphemeralContainer) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"ephemeralContainers": []*corev1.EphemeralContainer{c}}})
	if err != nil {
		return err
	}
	_, err = t.client.CoreV1().Pods(t.Name).Patch(ctx, p.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: policy.FieldManager}, "ephemeralcontainers")
	return err
}

// Remove deletes the wrapper in the foreground: its pods may exist as long as it does, and are gone once it is. grace,
// if given, is sent to pods with a longer one. A pod that is its own record is not replaced from then on.
func (t *Twin) Remove(ctx context.Context, w translate.Wrapper, grace *int64) error {
	if w.Pod != nil {
		err := replacement.End(ctx, t.client, w.Pod, translate.Sooner(grace, ptr.Deref(w.Pod.Spec.TerminationGracePeriodSeconds, 30)))
		if errors.Is(err, replacement.ErrMarked) {
			return target.ErrNotYet
		}
		return err
	}
	obj := w.Object()
	uid := obj.GetUID()
	opts := metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &uid},
		PropagationPolicy: ptr.To(metav1.DeletePropagationForeground),
	}
	var err error
	if w.Job != nil {
		err = t.client.BatchV1().Jobs(t.Name).Delete(ctx, obj.GetName(), opts)
	} else {
		err = t.client.AppsV1().ReplicaSets(t.Name).Delete(ctx, obj.GetName(), opts)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	var errs []error
	for _, p := range t.PodsOf(types.UID(obj.GetLabels()[policy.HomeUIDLabel])) {
		errs = append(errs, t.deletePod(ctx, p, translate.Sooner(grace, ptr.Deref(p.Spec.TerminationGracePeriodSeconds, 30))))
	}
	return errors.Join(errs...)
}

// Hasten sends a grace period that was shortened after the deletion.
func (t *Twin) Hasten(ctx context.Context, home *corev1.Pod) error {
	for _, p := range t.PodsOf(home.UID) {
		if p.DeletionTimestamp == nil || p.DeletionGracePeriodSeconds == nil {
			continue
		}
		if err := t.deletePod(ctx, p, translate.Sooner(home.DeletionGracePeriodSeconds, *p.DeletionGracePeriodSeconds)); err != nil {
			return err
		}
	}
	return nil
}

// deletePod deletes an away pod, which ends by itself later. It does nothing without a grace period, or if the
// provider's own bound applies.
func (t *Twin) deletePod(ctx context.Context, p *corev1.Pod, grace *int64) error {
	if grace == nil {
		return nil
	}
	err := t.client.CoreV1().Pods(t.Name).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if apierrors.IsConflict(err) || replacement.Refused(err) {
		return nil
	}
	return IgnoreGone(err)
}

// IgnoreGone is nil for an error that an object does not exist.
func IgnoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
