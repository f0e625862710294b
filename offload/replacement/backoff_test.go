package replacement

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/offload/policy"
)

// evicted is a record that was made at that time, ran for as long, and was ended by its kubelet.
func evicted(p *corev1.Pod, made time.Time, ran time.Duration) *corev1.Pod {
	p = p.DeepCopy()
	p.CreationTimestamp = metav1.NewTime(made)
	p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: `Usage of EmptyDir volume "x" exceeds the limit "64Mi". ` + strings.Repeat("x", 2*longestWord),
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error", FinishedAt: metav1.NewTime(made.Add(ran))}}}}}
	return p
}

// A pod that is ended again and again (over a limit of its storage, say) is made anew later and later, and each
// tells how the one before ended.
func TestPodsThatFailAreMadeAnewLaterAndLater(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab-a", Labels: map[string]string{policy.OriginLabel: "aid"}}}
	p := first(AtOnce)
	p.Namespace = "lab-a"
	var waits []int
	for i, ran := range []time.Duration{4, 60, 60, 60, 60, 60, 60, 60, 3600, 60, 60} {
		p.UID = types.UID(fmt.Sprint("u", i))
		p = evicted(p, now, ran*time.Second)
		now = now.Add(ran * time.Second)
		client := fake.NewClientset(ns, p)
		k := New(Config{Client: client, Log: slog.New(slog.DiscardHandler)})
		k.now = func() time.Time { return now }
		look := func() time.Duration {
			t.Helper()
			wait, err := k.check(t.Context(), types.NamespacedName{Namespace: "lab-a", Name: p.Name})
			if err != nil {
				t.Fatal(err)
			}
			return wait
		}
		wait := look()
		waits = append(waits, int(wait/time.Second))
		if now = now.Add(wait); wait > 0 && look() != 0 {
			t.Fatal("it waits longer than it said")
		}
		next := Successor(p)
		made, err := client.CoreV1().Pods("lab-a").Get(t.Context(), next.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		end := Before(made).Containers["c"]
		if end.Reason != "Evicted" || end.ExitCode != 137 || !strings.HasPrefix(end.Message, "Usage of EmptyDir") || len(end.Message) > longestWord {
			t.Fatalf("the next one tells %+v", end)
		}
		p = made
	}
	if got, want := fmt.Sprint(waits), "[6 10 20 40 80 160 300 300 0 10 20]"; got != want {
		t.Errorf("waits of %s seconds, want %s", got, want)
	}
	// Who deletes it does not wait, and nor does a clock that was set back.
	p = evicted(p, now, time.Second)
	if BackOff(p, now.Add(-time.Hour)) != 0 {
		t.Error("a clock that was set back holds it up")
	}
	p.DeletionTimestamp = &metav1.Time{Time: now}
	if BackOff(p, now.Add(time.Second)) != 0 || EndOf(p).Failures != 0 {
		t.Error("a drain waits for it")
	}
}

// Why a pod was ended is the word of who ended it: its status, or a condition that is true; not a reason of before.
func TestWhyAPodWasEnded(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		reason   string
		disrupts corev1.PodConditionType
		is       corev1.ConditionStatus
		want     string
	}{
		{"", corev1.DisruptionTarget, corev1.ConditionTrue, "PreemptionByScheduler"},
		{"", corev1.DisruptionTarget, corev1.ConditionFalse, "Error"},
		{"", corev1.PodReady, corev1.ConditionTrue, "Error"},
		{"Evicted", corev1.DisruptionTarget, corev1.ConditionTrue, "Evicted"},
	} {
		p := evicted(&corev1.Pod{}, now, time.Second)
		p.Status.Reason = c.reason
		p.Status.Conditions = []corev1.PodCondition{{Type: c.disrupts, Status: c.is, Reason: "PreemptionByScheduler"}}
		if got := EndOf(p).Containers["c"].Reason; got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// A keeper that was killed between making a successor and letting the one before go comes back after home has ended the last
// in the row, which has not ended yet: it makes no second one beside it.
func TestWhatHomeHasEndedIsNotMadeAgain(t *testing.T) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab-a", Labels: map[string]string{policy.OriginLabel: "aid"}}}
	old := first(AfterEnd)
	old.Namespace, old.UID, old.DeletionTimestamp, old.Status.Phase = "lab-a", "u1", &metav1.Time{Time: time.Now()}, corev1.PodFailed
	last := Successor(Successor(old))
	last.Namespace, last.UID, last.DeletionTimestamp, last.Finalizers = "lab-a", "u3", old.DeletionTimestamp, nil
	old.Annotations[markAnnotation] = Successor(old).Name
	client := fake.NewClientset(ns, old, last)
	if _, err := New(Config{Client: client, Log: slog.New(slog.DiscardHandler)}).check(t.Context(), types.NamespacedName{Namespace: "lab-a", Name: old.Name}); err != nil {
		t.Fatal(err)
	}
	for _, a := range client.Actions() {
		if a.GetVerb() == "create" {
			t.Errorf("made: %v", a)
		}
	}
}
