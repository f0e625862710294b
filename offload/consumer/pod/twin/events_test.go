package twin

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
)

// That a wrapper could make no pod is held back, and not told at all once there is one.
func TestARefusalThatMendsItselfIsNotTold(t *testing.T) {
	ours := map[string]string{policy.HomeUIDLabel: "u-1"}
	tw := newShown(nil)
	tw.sets.show(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "lab-a", Labels: ours}})
	tw.pods.show()
	event := func(reason string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "web." + reason, UID: types.UID(reason)}, Type: corev1.EventTypeWarning, Reason: reason,
			InvolvedObject: corev1.ObjectReference{Kind: "ReplicaSet", Name: "web", Namespace: "lab-a"}}
	}
	told := &copiedEvents{counts: map[string]int32{}, held: map[string]time.Time{}}
	refused := event("FailedCreate")
	if mended, wait := tw.twin.mends(refused, told); mended || wait <= 0 || wait > selfMending {
		t.Errorf("at first: mended %v, wait %s", mended, wait)
	}
	told.held[translate.EventName(refused)] = time.Now().Add(-selfMending)
	if mended, wait := tw.twin.mends(refused, told); mended || wait != 0 {
		t.Errorf("without a pod for %s: mended %v, wait %s", selfMending, mended, wait)
	}
	tw.pods.show(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-x7k2p", Namespace: "lab-a", Labels: ours}})
	if mended, _ := tw.twin.mends(refused, told); !mended {
		t.Error("told though the pod is there")
	}
	if mended, wait := tw.twin.mends(event("BackoffLimitExceeded"), told); mended || wait != 0 {
		t.Errorf("another warning: mended %v, wait %s", mended, wait)
	}
}

// What a controller does with the wrapper, by rules that home wrote into it, is no event of the user's pod; that it can
// make no pod is one.
func TestEventsOfTheWrapperAreForNobody(t *testing.T) {
	for _, c := range []struct {
		kind, reason, of string
		want             bool
	}{
		{"Pod", "Killing", corev1.EventTypeNormal, true},
		{"Pod", "Scheduled", corev1.EventTypeNormal, false},
		{"Pod", "BackOff", corev1.EventTypeWarning, true},
		{"Job", "PodFailurePolicy", corev1.EventTypeWarning, false},
		{"Job", "BackoffLimitExceeded", corev1.EventTypeWarning, false},
		{"Job", "SuccessfulCreate", corev1.EventTypeNormal, false},
		{"Job", "FailedCreate", corev1.EventTypeWarning, true},
		{"ReplicaSet", "FailedCreate", corev1.EventTypeWarning, true},
		{"ReplicaSet", "FailedDelete", corev1.EventTypeWarning, false},
		{"PersistentVolumeClaim", "ProvisioningFailed", corev1.EventTypeWarning, true},
		{"PersistentVolumeClaim", "WaitForFirstConsumer", corev1.EventTypeNormal, false},
	} {
		e := &corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: c.kind}, Reason: c.reason, Type: c.of}
		if got := !unwanted(e); got != c.want {
			t.Errorf("%s of a %s appears at home: %v, want %v", c.reason, c.kind, got, c.want)
		}
	}
}
