package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// giveBack evicts a pod whose namespace is not offloaded any more. Its
// PodDisruptionBudget decides when: until then it runs on where it is, and says
// what it waits for.
func (c *Controller) giveBack(ctx context.Context, home *corev1.Pod) error {
	err := Evict(ctx, c.cfg.Home, home)
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // it is deleted with its namespace, and comes by here again then
	case err == nil:
		c.accepted(home.UID)
		c.cfg.Recorder.Event(home, corev1.EventTypeNormal, "OffloadEnded", "namespace is no longer offloaded; the pod is given back")
		return nil
	case apierrors.IsTooManyRequests(err):
		const why = "namespace is no longer offloaded, and a PodDisruptionBudget keeps the pod where it is; see kubectl get pdb"
		if c.setRefused(home, why) != why {
			c.cfg.Recorder.Event(home, corev1.EventTypeWarning, "OffloadHeld", why)
		}
		return errNotYet
	}
	return ignoreGone(err)
}
