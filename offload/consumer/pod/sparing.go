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

// soon is how long a pod that was sent may take to be told of as more than sent: one
// that starts at once is written once, with its start. While many are being sent, and
// what is written delays the others, it is late.
const soon, late = 3 * time.Second, 30 * time.Second

// busy says that many pods wait to be sent, or are sent and wait for the provider, which
// has as much to do: what they have to tell is told with their start.
func (c *Controller) busy() bool { return c.queue.Len() > 2*workers || c.unstarted.count() > 2*workers }

// holdBack says how long st may wait to be written, of a pod that was sent. That the
// provider has it is no news, until it has begun to start or something is in the way.
// busy says that many wait.
func (c *Controller) holdBack(home *corev1.Pod, away Away, st corev1.PodStatus, now time.Time, busy bool) time.Duration {
	if home.Status.StartTime != nil || st.StartTime != nil {
		c.unstarted.done(home.UID)
	}
	if home.Status.StartTime != nil || st.StartTime != nil || away.Trouble != "" || away.Finished != "" ||
		home.Status.Phase != "" && home.Status.Phase != corev1.PodPending || st.Phase != corev1.PodPending ||
		st.Reason != "" && st.Reason != ReasonPending || len(st.ContainerStatuses)+len(st.InitContainerStatuses) > 0 {
		return 0
	}
	if home.Status.Reason == ReasonRefused {
		return 0 // that it is not any more is news
	}
	var from time.Time
	most := soon
	if cond := condition(&home.Status, OffloadedCondition); cond != nil {
		from = cond.LastTransitionTime.Time
	} else {
		c.mu.Lock()
		from = c.sent[home.UID] // none if it was an earlier process: it has waited already
		c.mu.Unlock()
		if busy {
			most = late
		}
	}
	// A clock that was set back must not hold it for longer.
	if since := now.Sub(from); since >= 0 && since < most {
		if most == late {
			return min(most-since, late/3) // by then it may be less busy; its start is seen at once
		}
		return most - since
	}
	return 0
}

// justSent reports that the wrapper was made so little ago that the watch need not show
// it yet, and has the pod looked at again when it has to.
func (c *Controller) justSent(home *corev1.Pod) bool {
	c.mu.Lock()
	at, known := c.sent[home.UID]
	c.mu.Unlock()
	since := time.Since(at)
	if !known || since < 0 || since >= soon {
		return false
	}
	c.queue.AddAfter(keyOf(home), soon-since)
	return true
}

// wasSent reports whether something was made away for the pod, as far as is known:
// its condition is written late.
func (c *Controller) wasSent(home *corev1.Pod) bool {
	if c.isUnsure(home) {
		return true
	}
	cond := condition(&home.Status, OffloadedCondition)
	if cond != nil && cond.Status == corev1.ConditionTrue {
		return true
	}
	c.mu.Lock()
	_, sent := c.sent[home.UID]
	c.mu.Unlock()
	if t := c.twins.get(home.Namespace); !sent && t != nil {
		sent = len(t.wrappers(byUID, string(home.UID)))+len(t.podsOf(home.UID)) > 0 // a pod may outlive its wrapper
	}
	return sent
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
