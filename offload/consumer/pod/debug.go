package pod

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/peer"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/policy"
	"rivulet/offload/replacement"
)

// debug adds the home pod's ephemeral containers (kubectl debug) to the away pod, one by one. Like a kubelet it starts
// each once: not again in a replacement of the pod in which it ran. It returns the statuses of refused ones: they wait
// with the reason, and then end with it.
func (c *Controller) debug(ctx context.Context, t *twin.Twin, home *corev1.Pod) (refused []corev1.ContainerStatus, err error) {
	if len(home.Spec.EphemeralContainers) == 0 {
		return nil, nil
	}
	refused, left := translate.EndRefused(home.Status.EphemeralContainerStatuses, time.Now())
	if left > 0 {
		c.queue.AddAfter(keyOf(home), left)
	}
	p := translate.Current(t.PodsOf(home.UID))
	if p == nil || p.DeletionTimestamp != nil || translate.Terminal(p.Status.Phase) {
		return refused, nil
	}
	missing, why := translate.AwayDebuggers(home, p)
	if len(missing) > 0 {
		err := c.bring(ctx, home)
		if _, stays := errors.AsType[*policy.StaysHomeError](err); err != nil && !stays {
			return refused, err
		}
	}
	var errs []error
	for i := range missing {
		err := t.Debug(ctx, p, &missing[i])
		switch {
		case replacement.ForGood(err):
			if c.checkTwin(ctx, t.Home) {
				return refused, errNotYet
			}
			why[missing[i].Name] = peer.Prose(fmt.Sprintf("%s does not take the ephemeral container: %v", c.cfg.Target.Name(), err))
		default:
			errs = append(errs, twin.IgnoreGone(err))
		}
	}
	for i := range home.Spec.EphemeralContainers {
		e := &home.Spec.EphemeralContainers[i]
		if text, ok := why[e.Name]; ok {
			c.cfg.Home.Recorder.Event(home, corev1.EventTypeWarning, translate.ReasonRefused, e.Name+": "+text)
			refused = append(refused, translate.RefusedContainer(e.Name, e.Image, text))
			c.queue.AddAfter(keyOf(home), translate.RefusalShown)
		}
	}
	return refused, errors.Join(errs...)
}

// nobodys reports whether the pod names its node, runs once and has no controller. kubectl debug node/NAME makes such a
// pod and waits for its container.
func nobodys(p *corev1.Pod) bool {
	return translate.RestartPolicy(p) == corev1.RestartPolicyNever && metav1.GetControllerOf(p) == nil && translate.Condition(&p.Status, corev1.PodScheduled) == nil
}

// turnDown makes the status of a refused pod without a controller final, like a kubelet's for a pod that it cannot run.
func (c *Controller) turnDown(home *corev1.Pod, st *corev1.PodStatus) {
	ended, left := translate.EndRefused(home.Status.ContainerStatuses, time.Now())
	switch {
	case len(ended) > 0 && left == 0:
		st.ContainerStatuses, st.Phase = ended, corev1.PodFailed
	case len(home.Status.ContainerStatuses) == 0:
		left = translate.RefusalShown
		for i := range home.Spec.Containers {
			st.ContainerStatuses = append(st.ContainerStatuses, translate.RefusedContainer(home.Spec.Containers[i].Name, home.Spec.Containers[i].Image, st.Message))
		}
	}
	if left > 0 {
		c.queue.AddAfter(keyOf(home), left)
	}
}
