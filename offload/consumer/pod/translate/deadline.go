package translate

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The reason and message that a kubelet writes.
const (
	ReasonDeadline  = "DeadlineExceeded"
	MessageDeadline = "Pod was active on the node longer than the specified deadline"
)

// TimeLeft is how long a pod may still run if home enforces its deadline; ok is false for other pods and before the
// start. It uses home's clock. The start is by the target's clock, so it is taken as not before the pod's creation and
// not in the future.
func TimeLeft(home *corev1.Pod, now time.Time) (left time.Duration, ok bool) {
	if home.Spec.ActiveDeadlineSeconds == nil || RestartPolicy(home) != corev1.RestartPolicyAlways || home.Status.StartTime == nil {
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
