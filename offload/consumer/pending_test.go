package consumer

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestAPodIsTakenUpWhateverItsAge: which pods wait is counted in checks. Their creation is by the API server's clock,
// which was ahead, or was set since.
func TestAPodIsTakenUpWhateverItsAge(t *testing.T) {
	pod := func(uid types.UID, age time.Duration) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))}, Status: corev1.PodStatus{
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}}}
	}
	old, future, later := pod("old", time.Hour), pod("future", -time.Hour), pod("later", time.Hour)
	seen := seenPods{}
	for i, c := range []struct {
		all  []any
		want int
	}{
		{[]any{old, future}, 0},
		{[]any{old, future, later}, 2},
		{[]any{future, later}, 2},
		{nil, 0},
		{[]any{later}, 0},
	} {
		n := 0
		for _, p := range seen.again(c.all) {
			if waiting(p) {
				n++
			}
		}
		if n != c.want {
			t.Errorf("check %d: %d pods wait, want %d", i, n, c.want)
		}
	}
	if len(seen) != 1 {
		t.Errorf("pods that are gone are remembered: %v", seen)
	}
}
