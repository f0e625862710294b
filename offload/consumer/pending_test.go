package consumer

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"rivulet/offload/policy"
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

// A full quota refuses the dry run by which pods are taken up. No pod is deleted, whoever owns it and however often this
// process starts: it may have to stay. Each has the event once; what stays at home by its own fields has none.
func TestPodsThatWaitUnderAFullQuotaAreKept(t *testing.T) {
	yes := true
	pod := func(name, owner string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: owner, Name: owner, UID: types.UID(owner), Controller: &yes}}
		}
		if change != nil {
			change(p)
		}
		return p
	}
	pods := []*corev1.Pod{pod("one", "ReplicaSet", nil), pod("two", "ReplicaSet", nil), pod("job", "Job", nil), pod("bare", "", nil),
		pod("labelled", "ReplicaSet", func(p *corev1.Pod) { p.Labels = map[string]string{policy.NamespaceLabel: "off"} }),
		pod("host", "StatefulSet", func(p *corev1.Pod) { p.Spec.HostNetwork = true })}
	client, recorder := fake.NewClientset(), record.NewFakeRecorder(10)
	for _, p := range pods {
		if err := client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "again", errors.New("exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5"))
	})
	for range 2 { // starts
		pending := newPendingPods(client, recorder)
		for range 2 {
			for _, p := range pods {
				if err := pending.takeUp(t.Context(), p, policy.Namespace{When: policy.Burst}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 4 { // one, two, job, bare
			select {
			case said := <-recorder.Events:
				if !strings.Contains(said, "OffloadTooLate") || !strings.Contains(said, "; raise the quota") {
					t.Error(said)
				}
			default:
				t.Error("an event is missing")
			}
		}
		if len(recorder.Events) > 0 {
			t.Errorf("one more: %s", <-recorder.Events)
		}
	}
	left, err := client.CoreV1().Pods("lab").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != len(pods) {
		t.Errorf("%d pods are left of %d: %v", len(left.Items), len(pods), err)
	}
}
