package main

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/test/harness/labtest"
)

// The story of make demo-exam on real devices, which fails by itself where a session is moved, lost or cut off, an
// answer is not kept, a session too many is admitted, or the end leaves something.
func TestExamStory(t *testing.T) {
	playInOwnLab(t, "exam", 8*time.Minute, func(ctx context.Context, dir string) error { return makeExam(ctx, dir, labtest.Binary(), t.Logf) })
}

// The same with all sessions, on hollow nodes.
func TestExamNumbers(t *testing.T) {
	labtest.NeedsLong(t)
	playInOwnLab(t, "exam", 8*time.Minute, func(ctx context.Context, dir string) error {
		return makeExamNumbers(ctx, dir, labtest.Binary(), t.Logf)
	})
}

// What must not happen to a session's pod is noticed, and what may happen is not.
func TestRollNoticesWhatMustNotHappen(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "exam", Name: "session-1-x", UID: "one", Labels: map[string]string{sessionLabel: "1"}},
			Spec: corev1.PodSpec{NodeName: "b"}, Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{}}}}
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		over   bool
		want   string
	}{
		"it runs on": {func(*corev1.Pod) {}, false, ""},
		"its node is not reached": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		}, false, ""},
		"another pod":              {func(p *corev1.Pod) { p.UID = "two" }, false, "a second pod"},
		"another node":             {func(p *corev1.Pod) { p.Spec.NodeName = "c" }, false, "on c, was on b"},
		"a restart":                {func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount = 1 }, false, "1 restarts"},
		"an end":                   {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false, "Failed"},
		"a deletion":               {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, false, "deleted"},
		"a deletion after the end": {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, true, ""},
	} {
		r := &roll{sessions: map[string]*attendance{}}
		r.note(pod(func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending }))
		r.note(pod(func(*corev1.Pod) {}))
		if c.over {
			r.end()
		}
		r.note(pod(c.change))
		if err := r.intact(); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
