package doctor

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/offload/policy"
)

// A pod that waits longer than it may take is named with its cause, the oldest first; those of other clusters,
// those that ended and those that are on their way are not.
func TestPodsThatDoNotRun(t *testing.T) {
	now := time.Now()
	made := func(name string, ago time.Duration, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, CreationTimestamp: metav1.NewTime(now.Add(-ago))}}
		p.Status.Phase = corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no node"}}
		if change != nil {
			change(p)
		}
		return p
	}
	ready := func(status corev1.ConditionStatus, ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase, p.Spec.NodeName = corev1.PodRunning, "home"
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.NewTime(now.Add(-ago))})
		}
	}
	well := []*corev1.Pod{
		made("new", time.Second, nil), made("well", time.Hour, ready(corev1.ConditionTrue, time.Hour)), made("just-now", time.Hour, ready(corev1.ConditionFalse, time.Second)),
		made("theirs", time.Hour, func(p *corev1.Pod) { p.Labels = map[string]string{policy.OriginLabel: "x"} }),
		made("done", time.Hour, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
	}
	for _, c := range []struct {
		name   string
		pods   []*corev1.Pod
		status Status
		words  string
	}{
		{"all well", nil, Pass, "all run"},
		{"no node", []*corev1.Pod{made("young", time.Minute, nil), made("old", time.Hour, nil)}, Warn, "lab/old: home has as many pods as it takes, and 1 more (rivulet pods)"},
		{"not ready", []*corev1.Pod{made("web", time.Hour, ready(corev1.ConditionFalse, time.Minute))}, Warn, "lab/web: it runs and is not ready"},
		{"does not go", []*corev1.Pod{made("web", time.Hour, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: now.Add(-time.Minute)}, []string{"example.com/hold"}
		})}, Warn, "lab/web: it was deleted and waits for example.com/hold"},
	} {
		client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "home"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}})
		for _, p := range append(c.pods, well...) {
			if err := client.Tracker().Add(p); err != nil {
				t.Fatal(err)
			}
		}
		e := machine(t, nil)
		e.Now = func() time.Time { return now }
		e.API = func() (kubernetes.Interface, error) { return client, nil }
		r := podsWaiting.Run(t.Context(), e)
		if r.Status != c.status || len(r.Text) < len(c.words) || r.Text[:len(c.words)] != c.words || r.Status == Warn && r.Cure == "" {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}
