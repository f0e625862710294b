package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
)

// A target may refuse a pod that home's admission lets through: for now, and the pod waits, or for good. Then the pod
// is OffloadRefused, with the target's message, which names the field. If its namespace may run at home, it is evicted
// as soon as its successor is kept off this target.
//
// 	a pod that is its own record   is refused on creation
// 	one that lacks fields there    is removed at once; a dry run shows later whether the target has them by now
// 	one of a ReplicaSet or a Job   is refused to a controller there: without a pod after unmadeFirst the target is
// 	                               queried by a dry run, and the wrapper is removed

const (
	unmadeFirst = 10 * time.Second
	// anew is the time after which a pod that was refused for good is tried again: owners change their rules.
	anew = 5 * time.Minute
)

// refuseForGood refuses a pod that this target does not accept as it is; away: another target might.
func (c *Controller) refuseForGood(ctx context.Context, home *corev1.Pod, why string, away bool) error {
	refused, err := c.refuse(ctx, home, why)
	if err != nil || !refused {
		return err
	}
	c.memory.setTurnedDown(home.UID, !away) // nothing is there: refuse has a proof
	c.queue.AddAfter(keyOf(home), anew)
	return c.leave(ctx, home, away)
}

// leave evicts a pod that was refused for good, if it may run at home, or away at another target, and its successor is
// kept off this one.
func (c *Controller) leave(ctx context.Context, home *corev1.Pod, away bool) error {
	owner := metav1.GetControllerOf(home)
	if owner == nil || owner.Kind == "DaemonSet" || c.cfg.Fit == nil {
		return nil // it would not be replaced, or on the same node
	}
	ns, err := c.cfg.Home.Client.CoreV1().Namespaces().Get(ctx, home.Namespace, metav1.GetOptions{})
	if err != nil {
		return twin.IgnoreGone(err)
	}
	now, _ := c.cfg.Namespaces.Parse(ns) // an invalid label counts as off
	may, err := c.cfg.Fit.Elsewhere(ctx, home, now, away)
	if err != nil || !may {
		return err
	}
	kept, err := c.cfg.Fit.Unwelcome(ctx, home.Namespace, *owner)
	if err != nil || !kept {
		return errors.Join(err, errNotYet)
	}
	return evict(ctx, c.cfg.Home.Client, home)
}

// evict evicts the pod, so that its owner makes another, if its PodDisruptionBudget allows.
func evict(ctx context.Context, client kubernetes.Interface, home *corev1.Pod) error {
	err := Evict(ctx, client, home)
	if apierrors.IsTooManyRequests(err) {
		return errNotYet
	}
	return twin.IgnoreGone(err)
}

// Evict evicts exactly this pod, if its PodDisruptionBudget allows.
func Evict(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) error {
	return client.CoreV1().Pods(p.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
	})
}

// takeBack removes the wrapper of a pod that has not started if it lacks fields of want, or if the target refuses its pod
// for good, and reports whether it does. The pod is refused when the wrapper is gone. An earlier process may have made
// the wrapper and not compared it.
func (c *Controller) takeBack(ctx context.Context, home *corev1.Pod, t *twin.Twin, have, want translate.Wrapper) (bool, error) {
	if home.Status.StartTime != nil {
		return false, nil
	}
	if err := translate.Dropped(&want.Template().Spec, &have.Template().Spec); err != nil {
		c.memory.setRefused(home.UID, err.Error())
		if have.Ending() {
			return true, nil
		}
		return true, c.twinError(ctx, t, t.Remove(ctx, have, new(int64)))
	}
	if have.Ending() || translate.HasRun(have) || len(t.PodsOf(home.UID)) > 0 ||
		strings.Contains(t.Away(home.UID, have).Trouble, "quota") {
		return false, nil
	}
	if wait := time.Until(c.memory.due(home.UID)); wait > 0 && wait <= anew { // not delayed by a clock that was set back
		c.queue.AddAfter(keyOf(home), wait)
		return false, nil
	}
	refusal := t.Rehearse(ctx, have)
	if refusal == nil {
		c.memory.setRequested(home.UID)
		c.queue.AddAfter(keyOf(home), anew)
		return false, nil
	}
	c.memory.setRefused(home.UID, fmt.Sprintf("taken back from %s: %s", c.cfg.Target.Name(), refusal))
	if err := t.Remove(ctx, have, nil); err != nil {
		return true, c.twinError(ctx, t, err) // and it is due again at once
	}
	c.memory.setRequested(home.UID)
	return true, nil
}
