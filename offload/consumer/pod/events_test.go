package pod

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/policy"
)

func TestEventsAreOfThePodOfHome(t *testing.T) {
	away := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-x7k2p", Namespace: "lab-a", UID: "u-away",
		Labels: map[string]string{policy.HomeUIDLabel: "u-1"}, Annotations: map[string]string{policy.HomePodAnnotation: "web"}}}
	event := func(change func(*corev1.Event)) *corev1.Event {
		e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "web-x7k2p.17", UID: "e-1", CreationTimestamp: then},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "web-x7k2p", Namespace: "lab-a", FieldPath: "spec.containers{web}"},
			Type:           corev1.EventTypeWarning, Reason: "BackOff", Count: 3, FirstTimestamp: then, LastTimestamp: then,
			Source: corev1.EventSource{Component: "kubelet", Host: "b-node"}, Message: "restarting web in pod web-x7k2p_lab-a(u-away), lab-a/web-x7k2p"}
		change(e)
		return homeEvent(e, "lab-a", "lab", away, "b")
	}
	got := event(func(*corev1.Event) {})
	ref := got.InvolvedObject
	if ref.Kind != "Pod" || ref.Namespace != "lab" || ref.Name != "web" || ref.UID != "u-1" || ref.FieldPath != "spec.containers{web}" {
		t.Errorf("about %+v", ref)
	}
	if got.Namespace != "lab" || got.Count != 3 || got.Source.Component != "kubelet" || got.Source.Host != "b" || got.ReportingController != EventReporter {
		t.Errorf("%+v", got)
	}
	if want := "restarting web in pod web_lab(u-1), lab/web"; got.Message != want {
		t.Errorf("message %q, want %q", got.Message, want)
	}
	if again := event(func(e *corev1.Event) { e.Count = 9 }); again.Name != got.Name || again.Count != 9 {
		t.Errorf("the same event counted again is another one: %s, %s", got.Name, again.Name)
	}
	if other := event(func(e *corev1.Event) { e.UID = "e-2" }); other.Name == got.Name {
		t.Error("two events are one")
	}
	// As the scheduler writes them.
	got = event(func(e *corev1.Event) {
		e.Source, e.Count, e.FirstTimestamp, e.LastTimestamp = corev1.EventSource{}, 0, metav1.Time{}, metav1.Time{}
		e.ReportingController, e.EventTime = "default-scheduler", metav1.NewMicroTime(then.Time)
	})
	if got.Source.Component != "default-scheduler" || got.Count != 1 || !got.FirstTimestamp.Equal(&then) || !got.LastTimestamp.Equal(&then) || !got.EventTime.IsZero() {
		t.Errorf("%+v", got)
	}
	if got = event(func(e *corev1.Event) { e.Message = strings.Repeat("ä", 2000) }); len(got.Message) > 1024 || !strings.HasSuffix(got.Message, "ä...") {
		t.Errorf("%d bytes: …%s", len(got.Message), got.Message[len(got.Message)-5:])
	}
}

// That a wrapper could make no pod is held back, and not told at all once there is one.
func TestARefusalThatMendsItselfIsNotTold(t *testing.T) {
	ours := map[string]string{policy.HomeUIDLabel: "u-1"}
	tw := &twin{name: "lab-a", pods: newSeen(), sets: newSeen(), jobs: newSeen(), secrets: newSeen()}
	tw.sets.(*seen).show(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "lab-a", Labels: ours}})
	tw.pods.(*seen).show()
	event := func(reason string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "web." + reason, UID: types.UID(reason)}, Type: corev1.EventTypeWarning, Reason: reason,
			InvolvedObject: corev1.ObjectReference{Kind: "ReplicaSet", Name: "web", Namespace: "lab-a"}}
	}
	told := &copiedEvents{counts: map[string]int32{}, held: map[string]time.Time{}}
	refused := event("FailedCreate")
	if mended, wait := tw.mends(refused, told); mended || wait <= 0 || wait > selfMending {
		t.Errorf("at first: mended %v, wait %s", mended, wait)
	}
	told.held[eventName(refused)] = time.Now().Add(-selfMending)
	if mended, wait := tw.mends(refused, told); mended || wait != 0 {
		t.Errorf("without a pod for %s: mended %v, wait %s", selfMending, mended, wait)
	}
	tw.pods.(*seen).show(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-x7k2p", Namespace: "lab-a", Labels: ours}})
	if mended, _ := tw.mends(refused, told); !mended {
		t.Error("told though the pod is there")
	}
	if mended, wait := tw.mends(event("BackoffLimitExceeded"), told); mended || wait != 0 {
		t.Errorf("another warning: mended %v, wait %s", mended, wait)
	}
}
