package pod

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Ready reports whether Services send traffic to the pod.
func Ready(p *corev1.Pod) bool {
	c := condition(&p.Status, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// Unready is the status of a pod that Services leave out, with the rest unchanged.
func Unready(home *corev1.Pod, why string) corev1.PodStatus {
	st := *home.Status.DeepCopy()
	if Ready(home) {
		setCondition(home, &st, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: ReasonLost, Message: why,
			LastTransitionTime: metav1.Now()})
	}
	return st
}

// lost reports whether the target has stopped answering; false right after a start.
func (c *Controller) lost() bool { return c.cfg.Lost != nil && c.cfg.Lost() }

// Vacate is called regularly while the target's offer is withdrawn. It queries which twins are gone: their pods that
// are being deleted are released at once, and others fail, so that their owners decide.
func (c *Controller) Vacate(ctx context.Context) error {
	gone := map[string]bool{}
	var errs []error
	for _, p := range c.pods.list() {
		if terminal(p.Status.Phase) && p.DeletionTimestamp == nil {
			continue
		}
		is, asked := gone[p.Namespace]
		if !asked {
			var err error
			if is, err = c.cfg.Target.Gone(ctx, p.Namespace); err != nil {
				return err
			}
			if gone[p.Namespace] = is; is {
				c.twins.drop(p.Namespace)
			}
		}
		switch {
		case !is:
		case p.DeletionTimestamp != nil:
			c.queue.Forget(keyOf(p))
			c.queue.Add(keyOf(p))
		case c.wasSent(p):
			errs = append(errs, c.write(ctx, p, Ended(p, corev1.PodFailed)))
		}
	}
	return errors.Join(errs...)
}
