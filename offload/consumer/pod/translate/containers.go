package translate

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Containers returns one status for each container of the home pod, by name; containers that the provider added are
// left out. prev is home's last status: restarts are counted on from it when the away pod is replaced. before is how
// the containers of the previous pod ended, if the target reports it.
func Containers(prev, away []corev1.ContainerStatus, spec []corev1.Container, policy corev1.RestartPolicy, before map[string]corev1.ContainerStateTerminated) []corev1.ContainerStatus {
	if len(prev) == 0 && len(away) == 0 {
		return nil // no kubelet has accepted the pod yet
	}
	var out []corev1.ContainerStatus
	for i := range spec {
		old, now := StatusOf(prev, spec[i].Name), StatusOf(away, spec[i].Name)
		if now == nil {
			now = &corev1.ContainerStatus{Name: spec[i].Name, Image: spec[i].Image,
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
		}
		if old != nil && finished(old, &spec[i], policy) {
			out = append(out, *old.DeepCopy()) // the API server does not allow a way back either
			continue
		}
		c := *now.DeepCopy()
		asAtHome(&c, old, &spec[i])
		c.RestartCount = restarts(old, &c)
		if end, told := before[c.Name]; c.LastTerminationState.Terminated == nil && told {
			c.LastTerminationState.Terminated = &end
		} else if c.LastTerminationState.Terminated == nil && old != nil {
			c.LastTerminationState = old.LastTerminationState
			if old.State.Terminated != nil && c.State.Terminated == nil {
				c.LastTerminationState = old.State
			}
		}
		timesAtHome(&c, old)
		if c.ContainerID == "" && old != nil {
			c.ContainerID = old.ContainerID // so that the next one is recognized as another
		}
		out = append(out, c)
	}
	return out
}

// finished reports whether the container has ended and will not be restarted.
func finished(st *corev1.ContainerStatus, c *corev1.Container, policy corev1.RestartPolicy) bool {
	t := st.State.Terminated
	if t == nil || c.RestartPolicy != nil || len(c.RestartPolicyRules) > 0 {
		return false
	}
	return policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && t.ExitCode == 0
}

// restarts counts another container ID as a restart, so that a replacement of the away pod never resets the count.
func restarts(old, now *corev1.ContainerStatus) int32 {
	switch {
	case old == nil || old.ContainerID == "":
		if old != nil {
			return max(old.RestartCount, now.RestartCount)
		}
		return now.RestartCount
	case now.ContainerID == "" || now.ContainerID == old.ContainerID:
		return max(old.RestartCount, now.RestartCount)
	default:
		return max(old.RestartCount+1, now.RestartCount)
	}
}

// StatusOf returns the status of the named container, nil without one. It points into the list.
func StatusOf(list []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

// KeepRunning yields the containers of a pod that run as long as it does, with their statuses (nil without one): native
// sidecars, which are restartable init containers, and the containers.
func KeepRunning(p *corev1.Pod) iter.Seq2[*corev1.Container, *corev1.ContainerStatus] {
	return func(yield func(*corev1.Container, *corev1.ContainerStatus) bool) {
		for i := range p.Spec.InitContainers {
			if c := &p.Spec.InitContainers[i]; ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways && !yield(c, StatusOf(p.Status.InitContainerStatuses, c.Name)) {
				return
			}
		}
		for i := range p.Spec.Containers {
			if c := &p.Spec.Containers[i]; !yield(c, StatusOf(p.Status.ContainerStatuses, c.Name)) {
				return
			}
		}
	}
}
