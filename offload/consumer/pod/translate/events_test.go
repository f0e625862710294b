package translate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/consumer/pod/translate/translatetest"
	"rivulet/offload/policy"
)

func TestEventsAreOfThePodOfHome(t *testing.T) {
	away := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-x7k2p", Namespace: "lab-a", UID: "u-away",
		Labels: map[string]string{policy.HomeUIDLabel: "u-1"}, Annotations: map[string]string{policy.HomePodAnnotation: "web"}}}
	event := func(change func(*corev1.Event)) *corev1.Event {
		e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "web-x7k2p.17", UID: "e-1", CreationTimestamp: translatetest.Then},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "web-x7k2p", Namespace: "lab-a", FieldPath: "spec.containers{web}"},
			Type:           corev1.EventTypeWarning, Reason: "BackOff", Count: 3, FirstTimestamp: translatetest.Then, LastTimestamp: translatetest.Then,
			Source: corev1.EventSource{Component: "kubelet", Host: "b-node"}, Message: "restarting web in pod web-x7k2p_lab-a(u-away), lab-a/web-x7k2p"}
		change(e)
		return Event(e, "lab-a", "lab", away, "b")
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
		e.ReportingController, e.EventTime = "default-scheduler", metav1.NewMicroTime(translatetest.Then.Time)
	})
	if got.Source.Component != "default-scheduler" || got.Count != 1 || !got.FirstTimestamp.Equal(&translatetest.Then) || !got.LastTimestamp.Equal(&translatetest.Then) || !got.EventTime.IsZero() {
		t.Errorf("%+v", got)
	}
	if got = event(func(e *corev1.Event) { e.Message = strings.Repeat("ä", 2000) }); len(got.Message) > 1024 || !strings.HasSuffix(got.Message, "ä...") {
		t.Errorf("%d bytes: …%s", len(got.Message), got.Message[len(got.Message)-5:])
	}
}
