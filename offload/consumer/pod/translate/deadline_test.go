package translate

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestWhoseDeadlineHomeKeeps(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(d)} }
	for _, c := range []struct {
		what          string
		restarts      corev1.RestartPolicy
		deadline      *int64
		made, started *metav1.Time
		left          time.Duration
		ok            bool
	}{
		{"none", corev1.RestartPolicyAlways, nil, at(-time.Minute), at(-time.Minute), 0, false},
		{"not started", corev1.RestartPolicyAlways, ptr.To[int64](60), at(-time.Hour), nil, 0, false},
		{"its kubelet's", corev1.RestartPolicyNever, ptr.To[int64](60), at(-time.Hour), at(-time.Hour), 0, false},
		{"its Job's", corev1.RestartPolicyOnFailure, ptr.To[int64](60), at(-time.Hour), at(-time.Hour), 0, false},
		{"to come", corev1.RestartPolicyAlways, ptr.To[int64](60), at(-time.Minute), at(-20 * time.Second), 40 * time.Second, true},
		{"passed", "", ptr.To[int64](60), at(-time.Hour), at(-90 * time.Second), -30 * time.Second, true},
		{"a clock that is behind", corev1.RestartPolicyAlways, ptr.To[int64](60), at(-20 * time.Second), at(-time.Hour), 40 * time.Second, true},
		{"a clock that is ahead", corev1.RestartPolicyAlways, ptr.To[int64](60), at(-20 * time.Second), at(time.Hour), time.Minute, true},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: *c.made},
			Spec: corev1.PodSpec{RestartPolicy: c.restarts, ActiveDeadlineSeconds: c.deadline}, Status: corev1.PodStatus{StartTime: c.started}}
		if left, ok := TimeLeft(p, now); ok != c.ok || left != c.left {
			t.Errorf("%s: %s %v, want %s %v", c.what, left, ok, c.left, c.ok)
		}
	}
}
