package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/fabric/peer"
	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
	"rivulet/offload/replacement"
)

// warned is how long a refused container waits before it ends: kubectl debug shows the reason of a waiting container,
// and reads the logs of an ended one. Times in a status are whole seconds.
const warned = 2 * time.Second

// debug adds the home pod's ephemeral containers (kubectl debug) to the away pod, one by one. Like a kubelet it starts
// each once: not again in a replacement of the pod in which it ran. It returns the statuses of refused ones: they wait
// with the reason, and then end with it.
func (c *Controller) debug(ctx context.Context, t *twin, home *corev1.Pod) (refused []corev1.ContainerStatus, err error) {
	if len(home.Spec.EphemeralContainers) == 0 {
		return nil, nil
	}
	refused, left := endRefused(home.Status.EphemeralContainerStatuses, time.Now())
	if left > 0 {
		c.queue.AddAfter(keyOf(home), left)
	}
	p := Current(t.podsOf(home.UID))
	if p == nil || p.DeletionTimestamp != nil || terminal(p.Status.Phase) {
		return refused, nil
	}
	missing, why := awayDebuggers(home, p)
	if len(missing) > 0 {
		if err := c.bring(ctx, home); err != nil {
			return refused, err
		}
	}
	var errs []error
	for i := range missing {
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"ephemeralContainers": missing[i : i+1]}})
		if err != nil {
			return refused, err
		}
		_, err = t.client.CoreV1().Pods(t.name).Patch(ctx, p.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{FieldManager: policy.FieldManager}, "ephemeralcontainers")
		switch {
		case replacement.ForGood(err):
			if c.checkTwin(ctx, t.home) {
				return refused, errNotYet
			}
			why[missing[i].Name] = peer.Prose(fmt.Sprintf("%s does not take the ephemeral container: %v", c.cfg.Target.Name(), err))
		default:
			errs = append(errs, ignoreGone(err))
		}
	}
	for i := range home.Spec.EphemeralContainers {
		e := &home.Spec.EphemeralContainers[i]
		if text, ok := why[e.Name]; ok {
			c.cfg.Recorder.Event(home, corev1.EventTypeWarning, ReasonRefused, e.Name+": "+text)
			refused = append(refused, refusedContainer(e.Name, e.Image, text))
			c.queue.AddAfter(keyOf(home), warned)
		}
	}
	return refused, errors.Join(errs...)
}

// refusedContainer is the status of a container that is not started. It waits; its end, and the time of the refusal,
// are in its last state.
func refusedContainer(name, image, why string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, Image: image, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: ReasonRefused, Message: why}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: ReasonRefused, Message: why, ExitCode: 128, FinishedAt: metav1.Now()}}}
}

// endRefused ends refused containers whose refusal was shown for long enough; left is the time until the others are
// due.
func endRefused(all []corev1.ContainerStatus, now time.Time) (ended []corev1.ContainerStatus, left time.Duration) {
	for _, st := range all {
		if !isRefused(&st) {
			continue
		}
		if rest := warned - now.Sub(st.LastTerminationState.Terminated.FinishedAt.Time); rest > 0 && rest <= warned {
			left = max(left, rest)
			continue
		}
		st.State, st.LastTerminationState = st.LastTerminationState, corev1.ContainerState{}
		ended = append(ended, st)
	}
	return ended, left
}

// nobodys reports whether the pod names its node, runs once and has no controller. kubectl debug node/NAME makes such a
// pod and waits for its container.
func nobodys(p *corev1.Pod) bool {
	return restart(p) == corev1.RestartPolicyNever && metav1.GetControllerOf(p) == nil && condition(&p.Status, corev1.PodScheduled) == nil
}

// turnDown makes the status of a refused pod without a controller final, like a kubelet's for a pod that it cannot run.
func (c *Controller) turnDown(home *corev1.Pod, st *corev1.PodStatus) {
	ended, left := endRefused(home.Status.ContainerStatuses, time.Now())
	switch {
	case len(ended) > 0 && left == 0:
		st.ContainerStatuses, st.Phase = ended, corev1.PodFailed
	case len(home.Status.ContainerStatuses) == 0:
		left = warned
		for i := range home.Spec.Containers {
			st.ContainerStatuses = append(st.ContainerStatuses, refusedContainer(home.Spec.Containers[i].Name, home.Spec.Containers[i].Image, st.Message))
		}
	}
	if left > 0 {
		c.queue.AddAfter(keyOf(home), left)
	}
}

// isRefused reports whether the status is that of refusedContainer.
func isRefused(st *corev1.ContainerStatus) bool {
	return st.State.Waiting != nil && st.State.Waiting.Reason == ReasonRefused && st.LastTerminationState.Terminated != nil
}

// awayDebuggers are the ephemeral containers that the away pod still needs, and why others, by name, are refused.
func awayDebuggers(home, away *corev1.Pod) (missing []corev1.EphemeralContainer, refused map[string]string) {
	there := map[string]bool{}
	for i := range away.Spec.EphemeralContainers {
		there[away.Spec.EphemeralContainers[i].Name] = true
	}
	refused = map[string]string{}
	for i := range home.Spec.EphemeralContainers {
		e := home.Spec.EphemeralContainers[i].DeepCopy()
		if there[e.Name] || statusOf(home.Status.EphemeralContainerStatuses, e.Name) != nil {
			continue
		}
		plain := corev1.Container(e.EphemeralContainerCommon)
		var why []RefusedField
		refuseContainer(fmt.Sprintf("spec.ephemeralContainers[%d]", i), &plain, func(path, reason string) { why = append(why, RefusedField{path, reason}) })
		if why != nil {
			refused[e.Name] = (&Refusal{Fields: why}).Error()
			continue
		}
		redirectEnv(plain.Env, home)
		if away.Annotations[policy.HomeAddressesAnnotation] == policy.HomeAddressesOfPods {
			addressAtHome(plain.Env)
		}
		redirectAuthority(&plain)
		if derives(&away.Spec, servicesMap) {
			derivedFrom(servicesMap, &plain)
		}
		if reachesHome(away) {
			derivedFrom(homeapi.Variables, &plain)
		}
		e.EphemeralContainerCommon = corev1.EphemeralContainerCommon(plain)
		missing = append(missing, *e)
	}
	return missing, refused
}

// withRefused adds the statuses of refused ephemeral containers.
func withRefused(all, refused []corev1.ContainerStatus) []corev1.ContainerStatus {
	for _, r := range refused {
		if old := statusOf(all, r.Name); old != nil {
			*old = r
		} else {
			all = append(all, r)
		}
	}
	return all
}

// reachesHome reports whether the names of home's API server are in the pod's /etc/hosts.
func reachesHome(away *corev1.Pod) bool {
	for _, a := range away.Spec.HostAliases {
		for _, name := range a.Hostnames {
			if name == homeapi.Host {
				return true
			}
		}
	}
	return false
}

// debuggers returns the statuses of ephemeral containers, by name. One that is gone with its pod has ended, in an
// unknown way.
func debuggers(home *corev1.Pod, away []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range home.Spec.EphemeralContainers {
		name := home.Spec.EphemeralContainers[i].Name
		old, now := statusOf(home.Status.EphemeralContainerStatuses, name), statusOf(away, name)
		switch {
		case old != nil && (old.State.Terminated != nil || isRefused(old)):
			out = append(out, *old.DeepCopy())
		case now != nil:
			out = append(out, *now.DeepCopy())
		case old != nil:
			gone := *old.DeepCopy()
			gone.State, gone.Ready = ended(old, 137, reasonUnknown, messageUnseen), false // kubectl debug waits for an end
			out = append(out, gone)
		}
	}
	return out
}
