package pod

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Each status is a write of home's datastore, and what a thousand pods write is what
// a small device notices of them. So what is about to be overtaken, and tells nobody
// anything, is not written.

// soon is how long a pod that was sent may take to be told of as more than sent.
const soon = 2 * time.Second

// holdBack says how long st may wait to be written. That the provider has made the
// pod, which has not begun to start yet, is no news beside that it was sent.
func holdBack(home *corev1.Pod, st corev1.PodStatus, now time.Time) time.Duration {
	sent := condition(&home.Status, OffloadedCondition)
	if sent == nil || sent.Status != corev1.ConditionTrue || home.Status.StartTime != nil || st.StartTime != nil ||
		home.Status.Phase != corev1.PodPending || st.Phase != corev1.PodPending || st.Reason != "" ||
		len(st.ContainerStatuses)+len(st.InitContainerStatuses) > 0 {
		return 0
	}
	// A clock that was set back must not hold it for longer.
	if since := now.Sub(sent.LastTransitionTime.Time); since >= 0 && since < soon {
		return soon - since
	}
	return 0
}

// follow writes what becomes of a pod on its way out. That its last pod away is gone
// is not written here: release does that, with how it ended; nor what says no more
// than that home has seen its own deletion.
func (c *Controller) follow(ctx context.Context, home *corev1.Pod, away Away) error {
	if away.Pod == nil && !terminal(away.Finished) {
		return nil
	}
	st := Status(home, away, c.view(home))
	if equality.Semantic.DeepEqual(ungenerated(st), ungenerated(home.Status)) {
		return nil
	}
	return c.writeStatus(ctx, home, st)
}

// ungenerated is the status without the generations it was made from.
func ungenerated(st corev1.PodStatus) corev1.PodStatus {
	out := *st.DeepCopy()
	out.ObservedGeneration = 0
	for i := range out.Conditions {
		out.Conditions[i].ObservedGeneration = 0
	}
	return out
}
