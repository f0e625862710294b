package pod

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"rivulet/offload/consumer/pod/translate"
)

// Each status is a write to home's datastore, and with a thousand pods these writes are the main load of a small
// device. So a status that is about to be replaced and has no information for users is not written.

// soon is how long a sent pod may take until a status other than "sent" is due: one that starts at once is written
// once, with its start. While many are being sent, and writes delay the others, it is late.
const soon, late = 3 * time.Second, 30 * time.Second

// busy: many pods wait to be sent, or are sent and wait for the provider, which is equally loaded. Their statuses are
// written with their start.
func (c *Controller) busy() bool { return c.queue.Len() > 2*workers || c.unstarted.count() > 2*workers }

// holdBack returns how long the status st of a sent pod may wait to be written. That the provider has it is of no
// interest before it begins to start or something prevents it. busy: many pods wait.
func (c *Controller) holdBack(home *corev1.Pod, away translate.Away, st corev1.PodStatus, now time.Time, busy bool) time.Duration {
	if home.Status.StartTime != nil || st.StartTime != nil {
		c.unstarted.done(home.UID)
	}
	if home.Status.StartTime != nil || st.StartTime != nil || away.Trouble != "" || away.Finished != "" ||
		home.Status.Phase != "" && home.Status.Phase != corev1.PodPending || st.Phase != corev1.PodPending ||
		st.Reason != "" && st.Reason != translate.ReasonPending || len(st.ContainerStatuses)+len(st.InitContainerStatuses) > 0 {
		return 0
	}
	if home.Status.Reason == translate.ReasonRefused {
		return 0 // the change back has to be shown
	}
	var from time.Time
	most := soon
	if cond := translate.Condition(&home.Status, translate.OffloadedCondition); cond != nil {
		from = cond.LastTransitionTime.Time
	} else {
		from, _ = c.memory.sentAt(home.UID) // zero after a restart: it has waited already
		if busy {
			most = late
		}
	}
	// A clock that was set back must not delay it further.
	if since := now.Sub(from); since >= 0 && since < most {
		if most == late {
			return min(most-since, late/3) // it may be less busy by then; a start is written at once
		}
		return most - since
	}
	return 0
}

// justSent reports that the wrapper was made so recently that the watch may not have it yet, and queues the pod for the
// time when it must.
func (c *Controller) justSent(home *corev1.Pod) bool {
	at, known := c.memory.sentAt(home.UID)
	since := time.Since(at)
	if !known || since < 0 || since >= soon {
		return false
	}
	c.queue.AddAfter(keyOf(home), soon-since)
	return true
}

// follow writes the status of a pod that is being deleted. It leaves the end of its last away pod to release, which
// writes how it ended, and does not write changes that only reflect home's own deletion.
func (c *Controller) follow(ctx context.Context, home *corev1.Pod, away translate.Away) error {
	if away.Pod == nil && !translate.Terminal(away.Finished) {
		return nil
	}
	st := translate.Status(home, away, c.view(home))
	if equality.Semantic.DeepEqual(translate.Ungenerated(st), translate.Ungenerated(home.Status)) {
		return nil
	}
	return c.writeStatus(ctx, home, st)
}
