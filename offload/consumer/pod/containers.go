package pod

import corev1 "k8s.io/api/core/v1"

// containers gives one status for each container of the pod at home, by name.
// Containers that the provider added are its own affair. prev is home's last
// status, from which restarts are counted on when the away pod was made anew; before is how
// those of the pod before ended, as far as the target tells.
func containers(prev, away []corev1.ContainerStatus, spec []corev1.Container, policy corev1.RestartPolicy, before map[string]corev1.ContainerStateTerminated) []corev1.ContainerStatus {
	if len(prev) == 0 && len(away) == 0 {
		return nil // nobody has taken the pod yet
	}
	var out []corev1.ContainerStatus
	for i := range spec {
		old, now := statusOf(prev, spec[i].Name), statusOf(away, spec[i].Name)
		if now == nil {
			now = &corev1.ContainerStatus{Name: spec[i].Name, Image: spec[i].Image,
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
		}
		if old != nil && finished(old, &spec[i], policy) {
			out = append(out, *old.DeepCopy()) // the API server allows no way back either
			continue
		}
		c := *now.DeepCopy()
		c.RestartCount = restarts(old, &c)
		if end, told := before[c.Name]; c.LastTerminationState.Terminated == nil && told {
			c.LastTerminationState.Terminated = &end
		} else if c.LastTerminationState.Terminated == nil && old != nil {
			c.LastTerminationState = old.LastTerminationState
			if old.State.Terminated != nil && c.State.Terminated == nil {
				c.LastTerminationState = old.State
			}
		}
		if c.ContainerID == "" && old != nil {
			c.ContainerID = old.ContainerID // so that the next one is known to be another
		}
		out = append(out, c)
	}
	return out
}

// finished reports whether the container ended and is not to run again.
func finished(st *corev1.ContainerStatus, c *corev1.Container, policy corev1.RestartPolicy) bool {
	t := st.State.Terminated
	if t == nil || c.RestartPolicy != nil || len(c.RestartPolicyRules) > 0 {
		return false
	}
	return policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && t.ExitCode == 0
}

// restarts counts a container that has another ID than before as a restart, so
// that replacing the away pod never takes the count back to zero.
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

func statusOf(list []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}
