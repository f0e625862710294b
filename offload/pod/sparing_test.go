package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOnlyWhatIsNoNewsIsHeldBack(t *testing.T) {
	now := time.Now()
	pending := corev1.PodStatus{Phase: corev1.PodPending}
	with := func(change func(*corev1.PodStatus)) corev1.PodStatus {
		st := *pending.DeepCopy()
		change(&st)
		return st
	}
	waiting := with(func(s *corev1.PodStatus) { s.Reason = ReasonPending })
	told := func(ago time.Duration) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, Reason: ReasonPending, Conditions: []corev1.PodCondition{
			{Type: OffloadedCondition, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-ago))}}}
	}
	const never = 24 * time.Hour
	for name, c := range map[string]struct {
		home corev1.PodStatus
		sent time.Duration // ago
		away Away
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
		"it was refused":                {home: with(func(s *corev1.PodStatus) { s.Reason = ReasonRefused }), sent: time.Second, st: waiting},
		"the provider does not take it": {home: pending, sent: time.Second, away: Away{Trouble: "quota"}, st: waiting},
		"it has ended":                  {home: pending, sent: time.Second, away: Away{Finished: corev1.PodFailed}, st: waiting},
		"it has started":                {home: pending, sent: time.Second, st: with(func(s *corev1.PodStatus) { s.StartTime = &metav1.Time{Time: now} })},
		"it runs":                       {home: pending, sent: time.Second, st: with(func(s *corev1.PodStatus) { s.Phase = corev1.PodRunning })},
		"no node for it":                {home: pending, sent: time.Second, st: with(func(s *corev1.PodStatus) { s.Reason = ReasonUnschedulable })},
		"an image is missing":           {home: pending, sent: time.Second, st: with(func(s *corev1.PodStatus) { s.ContainerStatuses = []corev1.ContainerStatus{{}} })},
	} {
		ctl := New(Config{})
		if c.sent != never {
			ctl.sent["u"] = now.Add(-c.sent)
		}
		home := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Status: c.home}
		if wait := ctl.holdBack(home, c.away, c.st, now, c.busy); wait > 0 != c.held || wait > soon {
			t.Errorf("%s: held back for %v", name, wait)
		}
	}
}
