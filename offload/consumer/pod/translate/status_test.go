package translate

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"rivulet/fabric/peer"
	"rivulet/offload/consumer/pod/translate/translatetest"
)

var view = View{Node: "b", HostIP: netip.MustParseAddr("100.127.1.1"), Home: func(a netip.Addr) (netip.Addr, bool) {
	return peer.Translate(a, netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.77.0.0/16"))
}}

// A pod that is to be restarted ends only by being evicted or lost. Its Job makes
// another, so at home it goes on; it ends when the Job does.
func TestEvictedPodThatIsRestarted(t *testing.T) {
	home := translatetest.Ungated()
	home.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	home.Status = Status(home, Away{Pod: translatetest.Running()}, view)
	evicted := translatetest.Running()
	evicted.Status.Phase, evicted.Status.Reason = corev1.PodFailed, "Evicted"
	st := Status(home, Away{Pod: evicted}, view)
	if st.Phase != corev1.PodRunning || st.Reason != ReasonPending || !strings.Contains(st.Message, "Evicted") {
		t.Errorf("evicted: %s %s %s", st.Phase, st.Reason, st.Message)
	}
	home.Status = st
	another := translatetest.Running()
	another.Status.ContainerStatuses[1].ContainerID = "c-2"
	if st = Status(home, Away{Pod: another}, view); st.Phase != corev1.PodRunning || st.ContainerStatuses[0].RestartCount != 1 || st.Reason != "" {
		t.Errorf("replaced: %+v", st)
	}
	home.Status = st
	st = Status(home, Away{Finished: corev1.PodFailed, Trouble: "DeadlineExceeded: too long"}, view)
	if st.Phase != corev1.PodFailed || !strings.Contains(st.Message, "DeadlineExceeded") {
		t.Errorf("the Job's deadline: %s %s %s", st.Phase, st.Reason, st.Message)
	}
	home.Spec.RestartPolicy = corev1.RestartPolicyNever
	home.Status = corev1.PodStatus{}
	if st = Status(home, Away{Pod: evicted}, view); st.Phase != corev1.PodFailed || st.Reason != "Evicted" {
		t.Errorf("one that is never restarted: %s %s", st.Phase, st.Reason)
	}
}

func TestStatusOfARunningPod(t *testing.T) {
	st := Status(translatetest.Ungated(), Away{Pod: translatetest.Running()}, view)
	if st.Phase != corev1.PodRunning || st.PodIP != "10.77.0.7" || len(st.PodIPs) != 1 || st.HostIP != "100.127.1.1" {
		t.Errorf("phase %s, pod %s %v, host %s", st.Phase, st.PodIP, st.PodIPs, st.HostIP)
	}
	if st.QOSClass != corev1.PodQOSBurstable || st.ObservedGeneration != 1 {
		t.Errorf("QoS and generation are home's, not %s and %d", st.QOSClass, st.ObservedGeneration)
	}
	if len(st.ContainerStatuses) != 1 || st.ContainerStatuses[0].Name != "web" {
		t.Errorf("containers %+v", st.ContainerStatuses)
	}
	if c := Condition(&st, corev1.PodReady); c == nil || c.Status != corev1.ConditionTrue || c.ObservedGeneration != 1 {
		t.Errorf("ready: %+v", c)
	}
	if c := Condition(&st, OffloadedCondition); c == nil || c.Status != corev1.ConditionTrue {
		t.Errorf("offloaded: %+v", c)
	}
}

func TestReadinessGatesAreJudgedAtHome(t *testing.T) {
	p := translatetest.Web() // has a gate "lb"
	closed := Status(p, Away{Pod: translatetest.Running()}, view)
	if c := Condition(&closed, corev1.PodReady); c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, "lb") {
		t.Errorf("gate closed: %+v", c)
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: "lb", Status: corev1.ConditionTrue}}
	open := Status(p, Away{Pod: translatetest.Running()}, view)
	if c := Condition(&open, corev1.PodReady); c.Status != corev1.ConditionTrue {
		t.Errorf("gate open: %+v", c)
	}
	if Condition(&open, "lb") == nil {
		t.Error("another writer's condition was lost")
	}
}

func TestWhatKeepsAPodFromStartingIsShown(t *testing.T) {
	unschedulable := translatetest.Running()
	unschedulable.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available"}}}
	gated := unschedulable.DeepCopy()
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}, {Name: "other"}}
	evicted := translatetest.Running()
	evicted.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk"}
	for name, c := range map[string]struct {
		away            Away
		reason, message string
	}{
		"no pod yet":        {Away{}, ReasonPending, "waiting for b"},
		"quota":             {Away{Trouble: "exceeded quota"}, ReasonPending, "on b: exceeded quota"},
		"no node":           {Away{Pod: unschedulable}, ReasonUnschedulable, "on b: 0/1 nodes"},
		"a gate":            {Away{Pod: gated}, ReasonGated, "on b: its owner's policy or queue holds the pod by scheduling gate kueue.x-k8s.io/admission and 1 more"},
		"evicted, replaced": {Away{Pod: evicted}, ReasonPending, "Evicted"},
	} {
		st := Status(translatetest.Ungated(), c.away, view)
		if st.Phase != corev1.PodPending || st.Reason != c.reason || !strings.Contains(st.Message, c.message) {
			t.Errorf("%s: %s %s %q", name, st.Phase, st.Reason, st.Message)
		}
	}
}

// What a provider says ends in objects of home and on terminals.
func TestWordsOfAProviderAreFit(t *testing.T) {
	p := translatetest.Running()
	bad := "x\x1b]0;y\x07\u202ez\u009b"
	p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodPending, bad, bad
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "a", Reason: bad, Message: bad})
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: bad, Message: "one\n\x1b[2Jtwo"}}}}
	before := p.DeepCopy()
	for _, away := range []Away{{Pod: p}, {Trouble: bad}} {
		st := Status(translatetest.Ungated(), away, view)
		text := fmt.Sprintf("%+v", st)
		for _, r := range text {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Fatalf("%q reaches home: %q", r, text)
			}
		}
	}
	if !reflect.DeepEqual(p, before) {
		t.Error("what the provider says was changed where it is kept")
	}
	e := Event(&corev1.Event{Reason: bad, Message: bad, Source: corev1.EventSource{Component: bad}}, "lab-a", "lab", p, "b")
	if strings.ContainsAny(e.Reason+e.Message+e.Source.Component, "\x1b\x07\u202e\u009b") {
		t.Errorf("an event: %q", e.Message)
	}
}

func TestAPodMadeAnewAwayIsARestartAtHome(t *testing.T) {
	p := translatetest.Ungated()
	p.Status = Status(p, Away{Pod: translatetest.Running()}, view)
	p.Status = Status(p, Away{}, view) // the provider lost it
	if p.Status.Phase != corev1.PodRunning || p.Status.PodIP != "" {
		t.Fatalf("between two pods: %s %q", p.Status.Phase, p.Status.PodIP)
	}
	if c := Condition(&p.Status, corev1.PodReady); c.Status != corev1.ConditionFalse {
		t.Fatalf("between two pods: %+v", c)
	}
	second := translatetest.Running()
	second.Status.ContainerStatuses[1].ContainerID = "c-2"
	p.Status = Status(p, Away{Pod: second}, view)
	if got := p.Status.ContainerStatuses[0].RestartCount; got != 1 {
		t.Errorf("restarts %d, want 1", got)
	}
}

func TestFinishedStaysFinished(t *testing.T) {
	p := translatetest.Ungated()
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	done := translatetest.Running()
	done.Spec.RestartPolicy, done.Status.Phase = corev1.RestartPolicyNever, corev1.PodSucceeded
	done.Status.ContainerStatuses[1].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0}}
	p.Status = Status(p, Away{Pod: done, Finished: corev1.PodSucceeded}, view)
	for name, away := range map[string]Away{"pod removed": {Finished: corev1.PodSucceeded}, "wrapper removed": {}, "runs again": {Pod: translatetest.Running()}} {
		if st := Status(p, away, view); !equality.Semantic.DeepEqual(st, p.Status) {
			t.Errorf("%s: %s", name, st.Phase)
		}
	}
}

func TestEndedDecidesAsAKubeletDoes(t *testing.T) {
	exit := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
	for name, c := range map[string]struct {
		state *corev1.ContainerState
		phase corev1.PodPhase
	}{
		"never started": {nil, corev1.PodFailed},
		"exit 0":        {ptr.To(exit(0)), corev1.PodSucceeded},
		"exit 1":        {ptr.To(exit(1)), corev1.PodFailed},
		"not seen":      {&corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, corev1.PodFailed},
	} {
		p := translatetest.Ungated()
		if c.state != nil {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", State: *c.state}}
		}
		st := Ended(p, "")
		if st.Phase != c.phase {
			t.Errorf("%s: %s, want %s", name, st.Phase, c.phase)
		}
		for _, cs := range st.ContainerStatuses {
			if cs.State.Running != nil || cs.Ready {
				t.Errorf("%s: container %+v", name, cs)
			}
		}
	}
}

// TestStatusIsSteady: whatever the provider says, one application is enough, the
// restart count never falls, a phase never goes back and no gate is lost.
func TestStatusIsSteady(t *testing.T) {
	phases := []corev1.PodPhase{"", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}
	order := map[corev1.PodPhase]int{"": 0, corev1.PodPending: 0, corev1.PodRunning: 1, corev1.PodSucceeded: 2, corev1.PodFailed: 2}
	rapid.Check(t, func(t *rapid.T) {
		home := translatetest.Web()
		home.Spec.RestartPolicy = rapid.SampledFrom([]corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}).Draw(t, "policy")
		home.Status.Conditions = []corev1.PodCondition{{Type: "lb", Status: corev1.ConditionTrue}}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			away := Away{Finished: rapid.SampledFrom([]corev1.PodPhase{"", "", "", corev1.PodFailed}).Draw(t, "finished")}
			if rapid.Bool().Draw(t, "pod") {
				p := translatetest.Running()
				p.Status.Phase = rapid.SampledFrom(phases).Draw(t, "phase")
				p.Spec.RestartPolicy = home.Spec.RestartPolicy
				p.Status.ContainerStatuses[1].ContainerID = fmt.Sprint("c-", rapid.IntRange(0, 3).Draw(t, "id"))
				p.Status.ContainerStatuses[1].RestartCount = rapid.Int32Range(0, 3).Draw(t, "restarts")
				away.Pod = p
			}
			before := home.Status
			home.Status = Status(home, away, view)
			if again := Status(home, away, view); !equality.Semantic.DeepEqual(again, home.Status) {
				t.Fatalf("applied twice: %+v then %+v", home.Status, again)
			}
			if order[home.Status.Phase] < order[before.Phase] {
				t.Fatalf("phase went from %s to %s", before.Phase, home.Status.Phase)
			}
			if old, now := StatusOf(before.ContainerStatuses, "web"), StatusOf(home.Status.ContainerStatuses, "web"); old != nil && (now == nil || now.RestartCount < old.RestartCount) {
				t.Fatalf("restarts went from %+v to %+v", old, now)
			}
			if Condition(&home.Status, "lb") == nil {
				t.Fatal("another writer's condition was lost")
			}
		}
	})
}

func TestCurrentIsThePodThatLives(t *testing.T) {
	at := func(name string, age time.Duration, phase corev1.PodPhase, going bool, policy corev1.RestartPolicy) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(translatetest.Then.Add(-age))},
			Spec: corev1.PodSpec{RestartPolicy: policy}, Status: corev1.PodStatus{Phase: phase}}
		if going {
			p.DeletionTimestamp = &translatetest.Then
		}
		return p
	}
	always, never := corev1.RestartPolicyAlways, corev1.RestartPolicyNever
	for want, pods := range map[string][]*corev1.Pod{
		"new":       {at("old", 2, corev1.PodRunning, false, always), at("new", 1, corev1.PodPending, false, always)},
		"living":    {at("living", 2, corev1.PodRunning, false, always), at("going", 1, corev1.PodRunning, true, always)},
		"going":     {at("going", 2, corev1.PodRunning, true, always), at("evicted", 1, corev1.PodFailed, false, always)},
		"succeeded": {at("succeeded", 2, corev1.PodSucceeded, false, never), at("going", 1, corev1.PodRunning, true, never)},
	} {
		if got := Current(pods); got.Name != want {
			t.Errorf("picked %s, want %s", got.Name, want)
		}
	}
	if Current(nil) != nil {
		t.Error("a pod out of none")
	}
}

// A provider does not say by home's own condition whether the pod may be there.
func TestOffloadedIsHomesOwnCondition(t *testing.T) {
	away := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: OffloadedCondition, Status: corev1.ConditionFalse, Reason: ReasonRefused, Message: "refused; do this"}, {Type: "example.com/Warm", Status: corev1.ConditionTrue},
	}}}
	st := status(&corev1.Pod{}, Away{Pod: away}, View{Node: "b"})
	if c := Condition(&st, OffloadedCondition); c == nil || c.Status != corev1.ConditionTrue || c.Reason != "Sent" {
		t.Errorf("%+v", c)
	}
	if Condition(&st, "example.com/Warm") == nil {
		t.Error("a condition of the pod's own is lost")
	}
}
