package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"rivulet/offload/policy"
)

const (
	reasonClosed = "Withdrawn"
	reasonFailed = "Failed"
)

// Closed returns since when the Node has been closed; now if it is open.
func Closed(n *corev1.Node) time.Time {
	for _, t := range n.Spec.Taints {
		if t.Key == policy.WithdrawnTaint && t.TimeAdded != nil {
			return t.TimeAdded.Time
		}
	}
	return time.Now()
}

func isClosed(t corev1.Taint) bool { return t.Key == policy.WithdrawnTaint }

// Close cordons the Node of a withdrawn target and makes it not ready. It changes n as well.
func Close(ctx context.Context, client kubernetes.Interface, n *corev1.Node, why string) error {
	if !slices.ContainsFunc(n.Spec.Taints, isClosed) {
		now := metav1.Now()
		if err := taint(ctx, client, n, policy.WithdrawnTaint, &now); err != nil {
			return fmt.Errorf("offload: close virtual node %s: %w", n.Name, err)
		}
	}
	return unready(ctx, client, n, reasonClosed, why)
}

// Fail makes the Nodes of a target, by its ID, not ready while nothing follows its offers. The next offer reverses it.
func Fail(ctx context.Context, client kubernetes.Interface, id, why string) error {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.VirtualNodeLabel + "=" + id})
	if err != nil {
		return fmt.Errorf("offload: virtual nodes: %w", err)
	}
	for i := range list.Items {
		if n := &list.Items[i]; Of(n) == id {
			err = errors.Join(err, unready(ctx, client, n, reasonFailed, why))
		}
	}
	return err
}

// unready sets the Node's Ready condition to false. It changes n as well.
func unready(ctx context.Context, client kubernetes.Interface, n *corev1.Node, reason, why string) error {
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		if c.Type != corev1.NodeReady || c.Status != corev1.ConditionTrue {
			continue
		}
		c.Status, c.Reason, c.Message, c.LastTransitionTime = corev1.ConditionFalse, reason, why, metav1.Now()
		made, err := client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{FieldManager: policy.FieldManager})
		switch {
		case err == nil:
			*n = *made
		case !apierrors.IsConflict(err): // the Node's own writer was faster; the next check repeats it
			return fmt.Errorf("offload: virtual node %s is still ready: %w", n.Name, err)
		}
		break
	}
	return nil
}

// Open reverses Close; the next offer makes the Node ready.
func Open(ctx context.Context, client kubernetes.Interface, n *corev1.Node) error {
	if !slices.ContainsFunc(n.Spec.Taints, isClosed) {
		return nil
	}
	if err := taint(ctx, client, n, policy.WithdrawnTaint, nil); err != nil {
		return fmt.Errorf("offload: open virtual node %s: %w", n.Name, err)
	}
	return nil
}

// Unchoose sets whether the Node of a target that is not chosen takes no new pods. It changes n as well.
func Unchoose(ctx context.Context, client kubernetes.Interface, n *corev1.Node, on bool) error {
	if on == slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == policy.UnchosenTaint }) {
		return nil
	}
	var since *metav1.Time
	if on {
		since = new(metav1.Time)
		*since = metav1.Now()
	}
	if err := taint(ctx, client, n, policy.UnchosenTaint, since); err != nil {
		return fmt.Errorf("offload: virtual node %s of a peer that is not chosen: %w", n.Name, err)
	}
	return nil
}

// taint gives n, which may be outdated, the taint of that key since then, or takes it from it.
func taint(ctx context.Context, client kubernetes.Interface, n *corev1.Node, key string, since *metav1.Time) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		next, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		next.Spec.Taints = slices.DeleteFunc(next.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
		if since != nil {
			next.Spec.Taints = append(next.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule, TimeAdded: since})
		}
		made, err := client.CoreV1().Nodes().Update(ctx, next, metav1.UpdateOptions{FieldManager: policy.FieldManager})
		if err == nil {
			*n = *made
		}
		return err
	})
}
