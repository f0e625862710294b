package tenancy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

// Evict deletes the twins of a cluster that may no longer borrow. It returns how many are not gone yet; their pods end
// within their grace periods.
func (t *Tenancy) Evict(ctx context.Context, consumer peer.ID) (left int, err error) {
	namespaces, err := t.of(ctx, consumer)
	if err != nil {
		return 0, err
	}
	for _, ns := range namespaces {
		if ns.DeletionTimestamp != nil {
			continue
		}
		uid := ns.UID
		err := t.client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) {
			return len(namespaces), fmt.Errorf("tenancy: delete twin %s: %w", ns.Name, err)
		}
		t.Log.Info("twin of a cluster that nothing is lent to any more is deleted", "peer", consumer.Short(), "twin", ns.Name)
	}
	return len(namespaces), nil
}

// evictedGrace is the grace period of evict, in seconds.
const evictedGrace = 1

// evict deletes a pod of a tenant at once, with the reason in an event and in its status, which its home receives.
func evict(ctx context.Context, client kubernetes.Interface, log *slog.Logger, p *corev1.Pod, message string) error {
	at := metav1.NewTime(now())
	_, err := client.CoreV1().Events(p.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: p.Name + ".", Namespace: p.Namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		Type:           corev1.EventTypeWarning, Reason: "Evicted", Message: message, Count: 1, FirstTimestamp: at, LastTimestamp: at,
		Source: corev1.EventSource{Component: "rivulet"},
	}, metav1.CreateOptions{FieldManager: policy.FieldManager})
	if err != nil {
		log.Debug("an eviction is not told", "pod", p.Namespace+"/"+p.Name, "err", err)
	}
	told, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": map[string]any{"conditions": []corev1.PodCondition{
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "Evicted", Message: message, LastTransitionTime: at}}}})
	if err == nil {
		_, err = client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, told, metav1.PatchOptions{FieldManager: policy.FieldManager}, "status")
	}
	if err != nil {
		log.Debug("the reason of an eviction is not told", "pod", p.Namespace+"/"+p.Name, "err", err)
	}
	err = client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](evictedGrace), Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	log.Warn("pod of another cluster evicted", "peer", peer.ID(p.Labels[policy.OriginLabel]).Short(), "pod", p.Namespace+"/"+p.Name, "reason", message)
	return nil
}
