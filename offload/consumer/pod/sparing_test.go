package pod

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/pod/translate"
)

// While many pods that were sent have not begun, the provider is busy: until they begin,
// or go.
func TestManyThatWaitAreBusy(t *testing.T) {
	ctl := New(Config{})
	pod := func(i int) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i))}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	}
	for i := range 2*workers + 2 {
		if ctl.busy() != (i > 2*workers) {
			t.Fatalf("busy with %d that were sent: %v", i, ctl.busy())
		}
		ctl.unstarted.sent(pod(i).UID)
	}
	ctl.holdBack(pod(0), translate.Away{}, corev1.PodStatus{Phase: corev1.PodPending}, time.Now(), true)
	if !ctl.busy() {
		t.Error("one that has not begun counts as begun")
	}
	ctl.holdBack(pod(0), translate.Away{}, corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: time.Now()}}, time.Now(), true)
	ctl.forget(pod(1))
	if ctl.busy() {
		t.Error("those that began or went still count")
	}
}

func TestOnlyWhatIsNoNewsIsHeldBack(t *testing.T) {
	now := time.Now()
	pending := corev1.PodStatus{Phase: corev1.PodPending}
	with := func(change func(*corev1.PodStatus)) corev1.PodStatus {
		st := *pending.DeepCopy()
		change(&st)
		return st
	}
	waiting := with(func(s *corev1.PodStatus) { s.Reason = translate.ReasonPending })
	told := func(ago time.Duration) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, Reason: translate.ReasonPending, Conditions: []corev1.PodCondition{
			{Type: translate.OffloadedCondition, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-ago))}}}
	}
	const never = 24 * time.Hour
	for name, c := range map[string]struct {
		home corev1.PodStatus
		sent time.Duration // ago
		away translate.Away
		st   corev1.PodStatus
		busy bool
		held bool
	}{
		"just sent":                     {home: pending, sent: time.Second, st: waiting, held: true},
		"just made":                     {home: pending, sent: time.Second, st: pending, held: true},
		"it takes long":                 {home: pending, sent: 5 * time.Second, st: waiting},
		"many are being sent":           {home: pending, sent: 5 * time.Second, st: waiting, busy: true, held: true},
		"however many are being sent":   {home: pending, sent: time.Minute, st: waiting, busy: true},
		"the clock was set back":        {home: pending, sent: -time.Hour, st: waiting},
		"sent by an earlier process":    {home: pending, sent: never, st: waiting, busy: true},
		"told, and just made":           {home: told(time.Second), sent: 4 * time.Second, st: pending, held: true},
		"told, and it takes long":       {home: told(5 * time.Second), sent: 8 * time.Second, st: pending, busy: true},
		"told, the clock was set back":  {home: told(-time.Hour), sent: never, st: pending},
		"it was refused":                {home: with(func(s *corev1.PodStatus) { s.Reason = translate.ReasonRefused }), sent: time.Second, st: waiting},
		"the provider does not take it": {home: pending, sent: time.Second, away: translate.Away{Trouble: "quota"}, st: waiting},
		"it has ended":                  {home: pending, sent: time.Second, away: translate.Away{Finished: corev1.PodFailed}, st: waiting},
		"it has started":                {home: pending, sent: time.Second, st: with(func(s *corev1.PodStatus) { s.StartTime = &metav1.Time{Time: now} })},
		"it runs":                       {home: pending, sent: time.Second, st: with(func(s *corev1.PodStatus) { s.Phase = corev1.PodRunning })},
		"no node for it":                {home: pending, sent: time.Second, st: with(func(s *corev1.PodStatus) { s.Reason = translate.ReasonUnschedulable })},
		"an image is missing":           {home: pending, sent: time.Second, st: with(func(s *corev1.PodStatus) { s.ContainerStatuses = []corev1.ContainerStatus{{}} })},
	} {
		ctl := New(Config{})
		if c.sent != never {
			ctl.memory.sent["u"] = now.Add(-c.sent)
		}
		home := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Status: c.home}
		if wait := ctl.holdBack(home, c.away, c.st, now, c.busy); wait > 0 != c.held || wait > soon && !c.busy || wait > late/3 {
			t.Errorf("%s: held back for %v", name, wait)
		}
	}
}
