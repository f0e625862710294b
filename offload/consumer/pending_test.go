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

// A full quota refuses the dry run by which pods are taken up. What a controller makes again is replaced, once; others are
// told, once; what stays at home is left alone.
func TestPodsAreTakenUpThoughTheQuotaIsFull(t *testing.T) {
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
	var all []any
	for _, p := range pods {
		if err := client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "again", errors.New("exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5"))
	})
	pending := newPendingPods(client, recorder)
	look := func(all []any) {
		t.Helper()
		for _, obj := range all {
			if err := pending.takeUp(t.Context(), obj.(*corev1.Pod), policy.Namespace{When: policy.Burst}, all); err != nil {
				t.Fatal(err)
			}
		}
	}
	left := func() (names string) {
		list, err := client.CoreV1().Pods("lab").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			names += p.Name + " "
		}
		return names
	}
	look(all)
	if got := left(); got != "bare host job labelled " {
		t.Errorf("left are %q", got)
	}
	// The successor of one waits as well: it is one that stays.
	next := pod("three", "ReplicaSet", nil)
	if err := client.Tracker().Add(next); err != nil {
		t.Fatal(err)
	}
	look(append(all[2:], next))
	if got := left(); got != "bare host job labelled three " {
		t.Errorf("later left are %q", got)
	}
	if len(recorder.Events) != 2 {
		t.Fatalf("%d events, want one for the bare pod and one for that of the Job", len(recorder.Events))
	}
	if said := <-recorder.Events; !strings.Contains(said, "OffloadTooLate") || !strings.Contains(said, "; raise the quota") {
		t.Error(said)
	}
}
