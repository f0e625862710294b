package pod

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
)

// spec.activeDeadlineSeconds is enforced away where a pod's final end is decided there: by the provider's kubelet with
// restartPolicy Never, by the Job with OnFailure. With Always a pod is replaced away whatever ends it, so home enforces
// the deadline, while the link is up. The pod then fails at home as a kubelet's would.

// expire ends an away pod after its deadline, and makes the home pod fail when nothing of it runs any more.
func (c *Controller) expire(ctx context.Context, home *corev1.Pod, t *twin.Twin) error {
	have := t.WrappersOf(home.UID)
	if standing := slices.DeleteFunc(slices.Clone(have), translate.Wrapper.Ending); len(standing) > 0 {
		for _, w := range standing {
			if err := t.Remove(ctx, w, nil); err != nil {
				return c.twinError(ctx, t, err)
			}
		}
		c.cfg.Home.Recorder.Event(home, corev1.EventTypeNormal, translate.ReasonDeadline, translate.MessageDeadline)
	}
	st := *home.Status.DeepCopy()
	st.Reason, st.Message = translate.ReasonDeadline, translate.MessageDeadline
	if p := translate.Current(t.PodsOf(home.UID)); p != nil { // records how its containers end
		st.InitContainerStatuses = translate.Containers(home.Status.InitContainerStatuses, p.Status.InitContainerStatuses, home.Spec.InitContainers, translate.RestartPolicy(home), nil)
		st.ContainerStatuses = translate.Containers(home.Status.ContainerStatuses, p.Status.ContainerStatuses, home.Spec.Containers, translate.RestartPolicy(home), nil)
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
	return c.writeStatus(ctx, home, translate.Ended(translate.WithEnd(ended, c.ends.Get(home.UID)), corev1.PodFailed))
}
