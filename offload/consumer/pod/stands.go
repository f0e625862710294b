package pod

import (
	"context"
	"errors"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
)

// A pod is released at home, or refused, only with a proof that nothing runs for it away:
//
// 	its twin is watched         the provider's API lists nothing of the pod now (live)
// 	its rights in the twin end  the provider has no such twin, not even one being deleted (Target.Gone)
// 	condition Offloaded=False   was written on one of these proofs, and nothing was sent since
//
// A create without an answer makes a pod unsure until a live read has resolved it.

// unknownOutcome reports whether a failed write may have happened nevertheless: only an explicit refusal of an API
// server excludes that.
func unknownOutcome(err error) bool {
	var said apierrors.APIStatus
	if errors.As(err, &said) {
		code := said.Status().Code
		return code < http.StatusBadRequest || code >= http.StatusInternalServerError
	}
	return err != nil
}

// live reads from the target's API whether anything exists there for the pod.
func (c *Controller) live(ctx context.Context, t *twin.Twin, home *corev1.Pod) (bool, error) {
	stands, err := t.Stands(ctx, home)
	return stands, c.twinError(ctx, t, err)
}

// settle finds out whether a create without an answer has happened.
func (c *Controller) settle(ctx context.Context, home *corev1.Pod) error {
	if !c.memory.isUnsure(home.UID) {
		return nil
	}
	t, err := c.watched(ctx, home.Namespace)
	there := false
	if t != nil && err == nil {
		there, err = c.live(ctx, t, home)
	}
	if err != nil {
		return err
	}
	if there {
		c.memory.setSent(home.UID)
	}
	c.memory.setUnsure(home.UID, false)
	return nil
}

// watched returns the twin of the namespace, which is watched from now on; nil if the target has confirmed that there
// is none, not even one being deleted.
func (c *Controller) watched(ctx context.Context, namespace string) (*twin.Twin, error) {
	if t := c.twins.Get(namespace); t != nil {
		return t, nil
	}
	held, err := c.cfg.Target.Twins(ctx)
	if err != nil {
		return nil, err
	}
	if name, ok := held[namespace]; ok {
		return c.watch(namespace, name), nil
	}
	gone, err := c.cfg.Target.Gone(ctx, namespace)
	if err == nil && !gone {
		err = errNotYet
	}
	return nil, err
}

// stands reports whether something may run away for a pod that is about to be refused.
func (c *Controller) stands(ctx context.Context, home *corev1.Pod) (bool, error) {
	if err := c.settle(ctx, home); err != nil {
		return false, err
	}
	cond := translate.Condition(&home.Status, translate.OffloadedCondition)
	if cond != nil && cond.Status == corev1.ConditionFalse && !c.wasSent(home) {
		return false, nil
	}
	t, err := c.watched(ctx, home.Namespace)
	switch {
	case err != nil || t == nil:
		return false, err
	case !t.Synced():
		return false, errNotYet
	case !c.wasSent(home):
		return false, nil
	}
	return c.live(ctx, t, home)
}

// showSent writes the status of a pod that runs away although it would be refused now: an earlier version has sent it.
func (c *Controller) showSent(ctx context.Context, home *corev1.Pod) error {
	t := c.twins.Get(home.Namespace)
	if t == nil {
		return errNotYet
	}
	if have := t.WrappersOf(home.UID); len(have) > 0 {
		return c.follow(ctx, home, t.Away(home.UID, have[0]))
	}
	return errNotYet
}
