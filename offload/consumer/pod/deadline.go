package pod

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// spec.activeDeadlineSeconds is kept by whoever decides away that a pod has ended for good:
// the provider's kubelet with restartPolicy Never, the Job with OnFailure. One that is always
// restarted is replaced away however it ends, so home ends it, when the link is there. The
// pod fails at home as a kubelet has it fail.

// The reason and message of a kubelet.
const (
	reasonDeadline  = "DeadlineExceeded"
	messageDeadline = "Pod was active on the node longer than the specified deadline"
)

// timeLeft is how long a pod that home itself has to end may still run; ok is false of all
// others, and of one that has not started. It counts by home's clock from the start, which is
// told by the target's: never from before the pod was made, nor from a time to come.
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

// expire ends away a pod whose deadline has passed, and has it fail at home when nothing of it
// runs any more.
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
	if p := Current(t.podsOf(home.UID)); p != nil { // how its containers end is seen once
		st.InitContainerStatuses = containers(home.Status.InitContainerStatuses, p.Status.InitContainerStatuses, home.Spec.InitContainers, restart(home), nil)
		st.ContainerStatuses = containers(home.Status.ContainerStatuses, p.Status.ContainerStatuses, home.Spec.Containers, restart(home), nil)
		return c.writeStatus(ctx, home, st)
	}
	if len(have) > 0 {
		return nil // its watch calls again
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
