package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOnlyWhatIsNoNewsIsHeldBack(t *testing.T) {
	now := time.Now()
	sent := func(ago time.Duration) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, Reason: ReasonPending, Conditions: []corev1.PodCondition{
			{Type: OffloadedCondition, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-ago))}}}}
	}
	made := corev1.PodStatus{Phase: corev1.PodPending}
	with := func(change func(*corev1.PodStatus)) corev1.PodStatus {
		st := *made.DeepCopy()
		change(&st)
		return st
	}
	for name, c := range map[string]struct {
		home *corev1.Pod
		st   corev1.PodStatus
		held bool
	}{
		"just made":              {sent(time.Second), made, true},
		"it takes long":          {sent(5 * time.Second), made, false},
		"the clock was set back": {sent(-time.Hour), made, false},
		"never sent":             {&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending}}, made, false},
		"it has started":         {sent(time.Second), with(func(s *corev1.PodStatus) { s.StartTime = &metav1.Time{Time: now} }), false},
		"it runs":                {sent(time.Second), with(func(s *corev1.PodStatus) { s.Phase = corev1.PodRunning }), false},
		"no node for it":         {sent(time.Second), with(func(s *corev1.PodStatus) { s.Reason = ReasonUnschedulable }), false},
		"an image is missing":    {sent(time.Second), with(func(s *corev1.PodStatus) { s.ContainerStatuses = []corev1.ContainerStatus{{}} }), false},
	} {
		if wait := holdBack(c.home, c.st, now); wait > 0 != c.held || wait > soon {
			t.Errorf("%s: held back for %v", name, wait)
		}
	}
}
