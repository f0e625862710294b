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
	"rivulet/offload/policy"
)

// A target may refuse a pod that home's admission lets through: for now, and the pod waits, or for good. Then the pod
// is OffloadRefused, with the target's message, which names the field. If its namespace may run at home, it is evicted
// as soon as its successor is kept off this target.
//
// 	a pod that is its own record   is refused on creation
// 	one of a ReplicaSet or a Job   is refused to a controller there: without a pod after unmadeFirst the target is
// 	                               queried by a dry run, and the wrapper is removed

const (
	unmadeFirst = 10 * time.Second
	// anew is the time after which a pod that was refused for good is tried again: owners change their rules.
	anew = 5 * time.Minute
)

// refuseForGood refuses a pod that this target does not accept as it is.
func (c *Controller) refuseForGood(ctx context.Context, home *corev1.Pod, why string) error {
	refused, err := c.refuse(ctx, home, why)
	if err != nil || !refused {
		return err
	}
	c.mu.Lock()
	delete(c.sent, home.UID) // nothing is there: refuse has a proof
	c.requested[home.UID] = time.Now()
	c.mu.Unlock()
	c.queue.AddAfter(keyOf(home), anew)
	return c.comeHome(ctx, home)
}

// isTurnedDown reports whether a pod was refused for good less than anew ago.
func (c *Controller) isTurnedDown(home *corev1.Pod) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := time.Since(c.requested[home.UID])
	return home.Status.Reason == translate.ReasonRefused && since >= 0 && since < anew
}

// comeHome evicts a pod that was refused for good, if its namespace may run at home and its successor is kept off this
// target.
func (c *Controller) comeHome(ctx context.Context, home *corev1.Pod) error {
	owner := metav1.GetControllerOf(home)
	if owner == nil || owner.Kind == "DaemonSet" || c.cfg.Unwelcome == nil {
		return nil // it would not be replaced, or on the same node
	}
	ns, err := c.cfg.Home.CoreV1().Namespaces().Get(ctx, home.Namespace, metav1.GetOptions{})
	if err != nil {
		return ignoreGone(err)
	}
	if now, _ := c.cfg.Parse(ns); now.When != policy.Burst && now.When != policy.Any { // an invalid label counts as off
		return nil
	}
	kept, err := c.cfg.Unwelcome(ctx, home.Namespace, *owner)
	if err != nil || !kept {
		return errors.Join(err, errNotYet)
	}
	return c.evict(ctx, home)
}

// evict evicts the pod, so that its owner makes another, if its PodDisruptionBudget allows.
func (c *Controller) evict(ctx context.Context, home *corev1.Pod) error {
	err := Evict(ctx, c.cfg.Home, home)
	if apierrors.IsTooManyRequests(err) {
		return errNotYet
	}
	return ignoreGone(err)
}

// Evict evicts exactly this pod, if its PodDisruptionBudget allows.
func Evict(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) error {
	return client.CoreV1().Pods(p.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
	})
}

// setRefused stores why a pod is refused, and returns the previous reason.
func (c *Controller) setRefused(home *corev1.Pod, why string) (before string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.refused[home.UID] = c.refused[home.UID], why
	return before
}

// isRefused reports whether the last attempt to send the pod was refused.
func (c *Controller) isRefused(home *corev1.Pod) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[home.UID] != "" || home.Status.Reason == translate.ReasonRefused
}

// takeBack removes a wrapper whose pod the target refuses for good, and reports whether it does. The pod is refused
// when the wrapper is gone.
func (c *Controller) takeBack(ctx context.Context, home *corev1.Pod, t *twin, have translate.Wrapper) (bool, error) {
	if home.Status.StartTime != nil || have.Ending() || translate.HasRun(have) || len(t.podsOf(home.UID)) > 0 ||
		strings.Contains(t.away(home.UID, have).Trouble, "quota") {
		return false, nil
	}
	c.mu.Lock()
	at, known := c.requested[home.UID]
	due := at.Add(anew)
	if !known {
		due = c.sent[home.UID].Add(unmadeFirst) // long ago after a restart
	}
	c.mu.Unlock()
	if wait := time.Until(due); wait > 0 && wait <= anew { // not delayed by a clock that was set back
		c.queue.AddAfter(keyOf(home), wait)
		return false, nil
	}
	c.mu.Lock()
	c.requested[home.UID] = time.Now()
	c.mu.Unlock()
	refusal := t.rehearse(ctx, have)
	if refusal == nil {
		c.queue.AddAfter(keyOf(home), anew)
		return false, nil
	}
	c.setRefused(home, fmt.Sprintf("taken back from %s: %s", c.cfg.Target.Name(), refusal))
	return true, c.twinError(ctx, t, t.remove(ctx, have, nil))
}
