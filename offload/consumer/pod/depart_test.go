package pod

import (
	"strings"
	"testing"

	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/translate/translatetest"
)

func TestAShorterGracePeriodIsTold(t *testing.T) {
	events := record.NewFakeRecorder(10)
	c, home, away := New(Config{Home: Home{Recorder: events}}), translatetest.Ungated(), translatetest.Running()
	home.Spec.TerminationGracePeriodSeconds, away.Spec.TerminationGracePeriodSeconds = ptr.To[int64](300), ptr.To[int64](45)
	for range 2 {
		c.copyGrace(home, away)
		home.Status = translate.Status(home, translate.Away{Pod: away}, view)
	}
	const want = "ends it 45 s after its deletion, not 300 s"
	if said := translate.Condition(&home.Status, translate.OffloadedCondition).Message; !strings.Contains(said, want) {
		t.Errorf("status: %s", said)
	}
	if len(events.Events) != 1 || !strings.Contains(<-events.Events, want) {
		t.Errorf("%d more events", len(events.Events))
	}
	away.Spec.TerminationGracePeriodSeconds = ptr.To[int64](300)
	if said := translate.Condition(ptr.To(translate.Status(home, translate.Away{Pod: away}, view)), translate.OffloadedCondition).Message; said != "runs on b" {
		t.Errorf("status: %s", said)
	}
}
