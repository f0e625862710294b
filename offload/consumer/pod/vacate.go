package pod

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/consumer/pod/translate"
)

// Vacate is called regularly while the target's offer is withdrawn. It queries which twins are gone: their pods that
// are being deleted are released at once, and others fail, so that their owners decide.
func (c *Controller) Vacate(ctx context.Context) error {
	gone := map[string]bool{}
	var errs []error
	for _, p := range c.pods.list() {
		if translate.Terminal(p.Status.Phase) && p.DeletionTimestamp == nil {
			continue
		}
		is, asked := gone[p.Namespace]
		if !asked {
			var err error
			if is, err = c.cfg.Target.Gone(ctx, p.Namespace); err != nil {
				return err
			}
			if gone[p.Namespace] = is; is {
				c.twins.Drop(p.Namespace)
			}
		}
		switch {
		case !is:
		case p.DeletionTimestamp != nil:
			c.queue.Forget(keyOf(p))
			c.queue.Add(keyOf(p))
		case c.wasSent(p):
			errs = append(errs, c.write(ctx, p, translate.Ended(p, corev1.PodFailed)))
		}
	}
	return errors.Join(errs...)
}
