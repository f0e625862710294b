package pod

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// spec.activeDeadlineSeconds is enforced away where a pod's final end is decided there: by the provider's kubelet with
// restartPolicy Never, by the Job with OnFailure. With Always a pod is replaced away whatever ends it, so home enforces
// the deadline, while the link is up. The pod then fails at home as a kubelet's would.

// The reason and message that a kubelet writes.
const (
	reasonDeadline  = "DeadlineExceeded"
	messageDeadline = "Pod was active on the node longer than the specified deadline"
)

// timeLeft is how long a pod may still run if home enforces its deadline; ok is false for other pods and before the
// start. It uses home's clock. The start is by the target's clock, so it is taken as not before the pod's creation and
// not in the future.
func timeLeft(home *corev1.Pod, now time.Time) (left time.Duration, ok bool) {
	if home.Spec.ActiveDeadlineSeconds == nil || restart(home) != corev1.RestartPolicyAlways || home.Status.StartTime == nil {
		return 0, false
	}
	begun := home.Status.StartTime.Time
	if made := home.CreationTimestamp.Time; begun.Before(made) {
		begun = made
	}
	if begun.After(now) {
		begun = now
	}
	deadline := time.Duration(*home.Spec.ActiveDeadlineSeconds) * time.Second
	return begun.Add(deadline).Sub(now), true
}

// expire ends an away pod after its deadline, and makes the home pod fail when nothing of it runs any more.
func (c *Controller) expire(ctx context.Context, home *corev1.Pod, t *twin) error {
	have := t.wrappers(byUID, string(home.UID))
	if standing := slices.DeleteFunc(slices.Clone(have), Wrapper.ending); len(standing) > 0 {
		for _, w := range standing {
			if err := t.remove(ctx, w, nil); err != nil {
				return c.twinError(ctx, t, err)
			}
		}
		c.cfg.Recorder.Event(home, corev1.EventTypeNormal, reasonDeadline, messageDeadline)
	}
	st := *home.Status.DeepCopy()
	st.Reason, st.Message = reasonDeadline, messageDeadline
	if p := Current(t.podsOf(home.UID)); p != nil { // records how its containers end
		st.InitContainerStatuses = containers(home.Status.InitContainerStatuses, p.Status.InitContainerStatuses, home.Spec.InitContainers, restart(home), nil)
		st.ContainerStatuses = containers(home.Status.ContainerStatuses, p.Status.ContainerStatuses, home.Spec.Containers, restart(home), nil)
		return c.writeStatus(ctx, home, st)
	}
	if len(have) > 0 {
		return nil // its watch queues it again
	}
	if stands, err := c.live(ctx, t, home); err != nil || stands {
		if err == nil {
			err = errNotYet // the caches lag
		}
		return err
	}
	ended := home.DeepCopy()
	ended.Status = st
	return c.writeStatus(ctx, home, Ended(withEnd(ended, c.ends.get(home.UID)), corev1.PodFailed))
}
