package pods

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rivulet/offload/offer"
	"rivulet/offload/policy"
)

func priority(p *corev1.Pod) int32 { return ptr.Deref(p.Spec.Priority, 0) }

// victims returns the pods that have to leave a node for p: the lowest priority first, then the newest, and none that
// makes no difference; none if pods that already leave make the room. ok is false if no room can be made. leaves
// reports whether a pod leaves.
func victims(p *corev1.Pod, on []*corev1.Pod, free corev1.ResourceList, leaves func(*corev1.Pod) bool) (out []*corev1.Pod, ok bool) {
	if ptr.Deref(p.Spec.PreemptionPolicy, corev1.PreemptLowerPriority) == corev1.PreemptNever {
		return nil, false
	}
	free = free.DeepCopy()
	var less []*corev1.Pod
	for _, q := range on {
		switch {
		case priority(q) >= priority(p):
		case leaves(q):
			giveBack(free, q)
		default:
			less = append(less, q)
		}
	}
	slices.SortFunc(less, func(x, y *corev1.Pod) int {
		return cmp.Or(cmp.Compare(priority(x), priority(y)), y.CreationTimestamp.Compare(x.CreationTimestamp.Time), cmp.Compare(x.UID, y.UID))
	})
	for _, q := range less {
		if short(p, free) == "" {
			break
		}
		giveBack(free, q)
		out = append(out, q)
	}
	if short(p, free) != "" {
		return nil, false
	}
	for i := len(out) - 1; i >= 0; i-- { // highest priority first
		q := out[i]
		if take(free, q); short(p, free) == "" {
			out = slices.Delete(out, i, i+1)
		} else {
			giveBack(free, q)
		}
	}
	return out, true
}

// giveBack adds what take subtracts.
func giveBack(free corev1.ResourceList, p *corev1.Pod) {
	for name, q := range offer.Requests(p) {
		if have, bounded := free[name]; bounded {
			have.Add(q)
			free[name] = have
		}
	}
}

// makeRoom finds a node, none of shut, on which pods of lower priority can leave for p, evicts them, and returns its name;
// "" is none.
func (b *binder) makeRoom(ctx context.Context, p *corev1.Pod, nodes []*corev1.Node, free map[string]corev1.ResourceList, on map[string][]*corev1.Pod, shut map[string]string) (node string, err error) {
	if policy.System(p.Namespace) {
		return "", nil
	}
	for _, n := range nodes {
		if shut[n.Name] != "" {
			continue
		}
		out, ok := victims(p, on[n.Name], free[n.Name], func(q *corev1.Pod) bool { return q.DeletionTimestamp != nil || b.leaving[q.UID] })
		if !ok {
			continue
		}
		for _, q := range out {
			if err := b.preempt(ctx, q, p); err != nil {
				return n.Name, err
			}
			b.leaving[q.UID] = true
		}
		return n.Name, nil
	}
	return "", nil
}

// preempt deletes a pod for one of higher priority, with its grace period, and reports it in its status and an event.
func (b *binder) preempt(ctx context.Context, victim, p *corev1.Pod) error {
	why := "preempted by pod " + p.Namespace + "/" + p.Name + ", whose priority is higher"
	status, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": victim.UID}, "status": map[string]any{"conditions": []corev1.PodCondition{
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler, Message: why, LastTransitionTime: metav1.Now()}}}})
	if err != nil {
		return err
	}
	pods := b.client.CoreV1().Pods(victim.Namespace)
	if _, err = pods.Patch(ctx, victim.Name, types.StrategicMergePatchType, status, metav1.PatchOptions{FieldManager: policy.FieldManager}, "status"); err == nil {
		err = pods.Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}})
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it has left
		return nil
	case err != nil:
		return err
	}
	b.events.Event(victim, corev1.EventTypeNormal, "Preempted", why)
	return nil
}
