package translate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition returns the condition of that type, nil without one. It points into the status.
func Condition(st *corev1.PodStatus, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == t {
			return &st.Conditions[i]
		}
	}
	return nil
}

// setCondition keeps the time of the last transition while the status is the same. Conditions of other writers stay. A
// time by the target's clock counts only between home's last transition (the pod's creation for the first) and now: home's
// controllers compare it with their own clock, and before that home had another status.
func setCondition(home *corev1.Pod, st *corev1.PodStatus, c corev1.PodCondition) {
	c.ObservedGeneration = home.Generation
	c.LastProbeTime = metav1.Time{}
	if old := Condition(st, c.Type); old != nil {
		if old.Status == c.Status && !old.LastTransitionTime.IsZero() {
			c.LastTransitionTime = old.LastTransitionTime
		} else if now := metav1.Now(); c.LastTransitionTime.Before(&old.LastTransitionTime) || now.Before(&c.LastTransitionTime) {
			c.LastTransitionTime = now
		}
		*old = c
		return
	}
	c.LastTransitionTime = timeAtHome(c.LastTransitionTime, home.CreationTimestamp)
	st.Conditions = append(st.Conditions, c)
}

// ready combines the away pod's readiness with the readiness gates, which controllers of home set on the home pod.
func ready(home *corev1.Pod, away *corev1.PodCondition) corev1.PodCondition {
	if away == nil {
		return corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}
	}
	if away.Status != corev1.ConditionTrue {
		return *away
	}
	for _, g := range home.Spec.ReadinessGates {
		if c := Condition(&home.Status, g.ConditionType); c == nil || c.Status != corev1.ConditionTrue {
			return corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ReadinessGatesNotReady",
				Message: fmt.Sprintf("readiness gate %q is not True", g.ConditionType), LastTransitionTime: metav1.Now()}
		}
	}
	return *away
}

// Ready reports whether Services send traffic to the pod.
func Ready(p *corev1.Pod) bool {
	c := Condition(&p.Status, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// Unready is the status of a pod that Services leave out, with the rest unchanged.
func Unready(home *corev1.Pod, why string) corev1.PodStatus {
	st := *home.Status.DeepCopy()
	if Ready(home) {
		setCondition(home, &st, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: ReasonLost, Message: why,
			LastTransitionTime: metav1.Now()})
	}
	return st
}

// timeAtHome is a time by the target's clock, at most now and at least the other.
func timeAtHome(t, earliest metav1.Time) metav1.Time {
	if now := metav1.Now(); now.Before(&t) {
		t = now
	}
	if t.Before(&earliest) {
		t = earliest
	}
	return t
}
