package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rivulet/offload/consumer/pod/twin"
)

// giveBack evicts a pod whose namespace is no longer offloaded. Its PodDisruptionBudget decides when: until then it
// runs where it is, with the reason in an event.
func (c *Controller) giveBack(ctx context.Context, home *corev1.Pod) error {
	err := Evict(ctx, c.cfg.Home.Client, home)
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // deleted with its namespace, which queues it again
	case err == nil:
		c.memory.accepted(home.UID)
		c.cfg.Home.Recorder.Event(home, corev1.EventTypeNormal, "OffloadEnded", "namespace is no longer offloaded; the pod is given back")
		return nil
	case apierrors.IsTooManyRequests(err):
		const why = "namespace is no longer offloaded, and a PodDisruptionBudget keeps the pod where it is; see kubectl get pdb"
		if c.memory.setRefused(home.UID, why) != why {
			c.cfg.Home.Recorder.Event(home, corev1.EventTypeWarning, "OffloadHeld", why)
		}
		return errNotYet
	}
	return twin.IgnoreGone(err)
}
