package translate

import (
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/pod/translate/translatetest"
	"rivulet/offload/replacement"
)

// While a pod that is deleted may still run away its phase says nothing else, but how its
// containers end is known.
func TestAPodThatIsDeletedIsNotTakenForReplaced(t *testing.T) {
	home := translatetest.Ungated()
	home.Status = Status(home, Away{Pod: translatetest.Running()}, view)
	home.DeletionTimestamp = &translatetest.Then
	away := translatetest.Running()
	away.DeletionTimestamp, away.Status.Phase = &translatetest.Then, corev1.PodFailed
	away.Status.ContainerStatuses[1].State = translatetest.Exit(3)
	st := Status(home, Away{Pod: away}, view)
	if end := st.ContainerStatuses[0].State.Terminated; st.Phase != corev1.PodRunning || end == nil || end.ExitCode != 3 {
		t.Errorf("%s %+v", st.Phase, st.ContainerStatuses)
	}
}

// What nobody saw is told as Kubernetes tells it of a pod that is lost with its node: a Job whose podFailurePolicy ignores
// disruptions makes another, and one that judges exit codes finds none.
func TestNoExitIsInvented(t *testing.T) {
	failed := func(reason, message string) *batchv1.Job {
		return &batchv1.Job{Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: reason, Message: message}}}}
	}
	for name, c := range map[string]struct {
		job       *batchv1.Job
		code      int32
		disrupted bool
		message   string
	}{
		"evicted":                           {failed(batchv1.JobReasonPodFailurePolicy, "Pod lab-a/web-abcde has condition DisruptionTarget matching FailJob rule at index 0"), 0, true, "evicted"},
		"failed":                            {failed(batchv1.JobReasonPodFailurePolicy, "Container web for pod lab-a/web-abcde failed with exit code 42 matching FailJob rule at index 1"), 42, false, ""},
		"not known, from before an upgrade": {failed(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit"), 0, true, "backoff limit"},
		"the deadline":                      {failed(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline"), 0, false, "deadline"},
		"deleted there":                     {nil, 0, true, "gone"},
	} {
		home := translatetest.Ungated()
		home.Spec.RestartPolicy = corev1.RestartPolicyNever
		home.Status = Status(home, Away{Pod: translatetest.Running()}, view)
		st := Ended(home, corev1.PodFailed)
		if c.job != nil {
			st = Status(home, OfWrapper(Wrapper{Job: c.job}), view)
		}
		got := st.ContainerStatuses[0]
		if st.Phase != corev1.PodFailed || got.Ready || !strings.Contains(st.Message, c.message) || strings.Contains(st.Message, "lab-a") {
			t.Errorf("%s: %s %s, %+v", name, st.Phase, st.Message, got)
		}
		if c.code != 0 && (got.State.Terminated == nil || got.State.Terminated.ExitCode != c.code || got.ContainerID != "c-1") || c.code == 0 && got.State.Terminated != nil {
			t.Errorf("%s: %+v", name, got.State)
		}
		if cond := Condition(&st, corev1.DisruptionTarget); c.disrupted != (cond != nil && cond.Status == corev1.ConditionTrue) {
			t.Errorf("%s: %+v", name, cond)
		}
		home.Status = st
		if again := Ended(home, corev1.PodFailed); len(again.Conditions) != len(st.Conditions) {
			t.Errorf("%s: a second time %+v", name, again.Conditions)
		}
	}
	w, err := Wrap(ungatedNever(), "aid", "")
	if err != nil || w.Job.Spec.PodFailurePolicy == nil || len(w.Job.Spec.PodFailurePolicy.Rules) != 2 {
		t.Errorf("the Job keeps nothing: %v %+v", err, w.Job)
	}
	onFailure := translatetest.Ungated()
	onFailure.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	if w, err := Wrap(onFailure, "aid", ""); err != nil || w.Job.Spec.PodFailurePolicy != nil {
		t.Errorf("an API server takes no podFailurePolicy with OnFailure: %v", err)
	}
}

func ungatedNever() *corev1.Pod {
	p := translatetest.Ungated()
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	return p
}

// How the pod before ended stays in the status of the one in its place, whoever saw it end; while that waits its status is
// that of a container which crashes again and again.
func TestTheEndOfThePodBeforeIsKept(t *testing.T) {
	home, away := translatetest.Ungated(), translatetest.Running()
	away.Labels, away.Annotations = map[string]string{}, map[string]string{}
	replacement.Keep(away, replacement.AtOnce)
	home.Status = Status(home, Away{Pod: away}, view)
	for i := range 3 {
		gone := away.DeepCopy()
		gone.UID = types.UID(fmt.Sprint("u", i))
		gone.Status.Phase, gone.Status.Reason, gone.Status.Message = corev1.PodFailed, "Evicted", "over its limit"
		gone.Status.ContainerStatuses[1].State = translatetest.Exit(137)
		waits, shown := "ContainerCreating", i != 1 // home is away at the second
		if i > 0 {
			waits = "CrashLoopBackOff"
		}
		if shown {
			home.Status = Status(home, Away{Pod: gone}, view)
			if w := home.Status.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != waits {
				t.Errorf("pod %d is gone: %+v", i, home.Status.ContainerStatuses[0].State)
			}
		}
		next := replacement.Successor(gone)
		next.Status = *translatetest.Running().Status.DeepCopy()
		next.Status.ContainerStatuses[1].ContainerID = fmt.Sprint("d-", i)
		away = next
		home.Status = Status(home, Away{Pod: away}, view)
		c := home.Status.ContainerStatuses[0]
		if last := c.LastTerminationState.Terminated; last == nil || last.Reason != "Evicted" || last.Message != "over its limit" || last.ExitCode != 137 || c.RestartCount != int32(i+1) || c.State.Running == nil {
			t.Errorf("pod %d: %+v", i, c)
		}
	}
	// One that is replaced while it ends: its successor was made before anybody knew how.
	next, last := translatetest.Running(), away.DeepCopy()
	next.UID, next.Status.ContainerStatuses[1].ContainerID = "u9", "e-1"
	last.DeletionTimestamp, last.Status.ContainerStatuses[1].State = &translatetest.Then, translatetest.Exit(143)
	last.Status.Conditions = append(last.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler", Message: "for others"})
	other := home.DeepCopy()
	other.Status = Status(home, Away{Pod: next, Last: last}, view)
	if end := other.Status.ContainerStatuses[0].LastTerminationState.Terminated; end == nil || end.Reason != "PreemptionByScheduler" || end.Message != "for others" || end.ExitCode != 143 {
		t.Errorf("preempted: %+v", end)
	}
	if again := Status(home, Away{Pod: away}, view); !equality.Semantic.DeepEqual(again, home.Status) {
		t.Error("applied twice")
	}
}
