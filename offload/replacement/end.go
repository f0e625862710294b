package replacement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/policy"
)

// ErrMarked: the pod's successor is being made; the pod is released shortly.
var ErrMarked = errors.New("keeper: the pod is just being replaced; try again")

// End ends a record that was read before: it is deleted and not replaced. If it has changed since, the error is a
// conflict: read it again.
func End(ctx context.Context, client kubernetes.Interface, p *corev1.Pod, grace *int64) error {
	if Kept(p) {
		if p.Annotations[markAnnotation] != "" {
			return ErrMarked
		}
		if err := letGo(ctx, client, p, p.ResourceVersion); err != nil {
			return gone(err)
		}
	}
	if p.DeletionTimestamp != nil {
		return nil
	}
	opts := metav1.DeleteOptions{GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &p.UID}}
	err := client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, opts)
	if grace != nil && Refused(err) { // it allows less; without one it has nothing to refuse
		opts.GracePeriodSeconds = nil
		err = client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, opts)
	}
	return gone(err)
}

// EndAll ends all records of a namespace.
func EndAll(ctx context.Context, client kubernetes.Interface, namespace string) error {
	kept, err := labels.Parse(policy.KeptLabel)
	if err != nil {
		return err
	}
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: kept.String()})
	if err != nil {
		return fmt.Errorf("keeper: pods of %s: %w", namespace, err)
	}
	var errs []error
	for i := range list.Items {
		errs = append(errs, End(ctx, client, &list.Items[i], nil))
	}
	return errors.Join(errs...)
}

// letGo removes the finalizer; with a version only from that one.
func letGo(ctx context.Context, client kubernetes.Interface, p *corev1.Pod, version string) error {
	_, err := patch(ctx, client, p, version, map[string]any{"$deleteFromPrimitiveList/finalizers": []string{Finalizer}})
	return err
}

// patch changes the metadata of exactly this pod.
func patch(ctx context.Context, client kubernetes.Interface, p *corev1.Pod, version string, metadata map[string]any) (*corev1.Pod, error) {
	metadata["uid"] = p.UID
	if version != "" {
		metadata["resourceVersion"] = version
	}
	text, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return nil, err
	}
	return client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, text, metav1.PatchOptions{FieldManager: policy.FieldManager})
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
