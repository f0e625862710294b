package pod

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"rivulet/offload/policy"
	"rivulet/offload/replacement"
	"rivulet/test/harness/await"
)

func exit(code int32) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: "its own word"}}
}

// A pod that is deleted is let go at home with its true end, which the watch may show in the moment in which the pod
// is gone, and no list ever.
func TestTheEndOfADeletedPodIsItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		policy corev1.RestartPolicy
		code   int32
		want   corev1.PodPhase
	}{
		"a service that ends well": {corev1.RestartPolicyAlways, 0, corev1.PodSucceeded},
		"a service that does not":  {corev1.RestartPolicyAlways, 3, corev1.PodFailed},
		"work that is cut short":   {corev1.RestartPolicyNever, 143, corev1.PodFailed},
	} {
		t.Run(name, func(t *testing.T) {
			home := ungated()
			home.Spec.RestartPolicy, home.DeletionTimestamp = c.policy, &metav1.Time{Time: time.Now()}
			home.Status = Status(home, Away{Pod: running()}, view)
			atHome, there := fake.NewClientset(home), fake.NewClientset()
			var last corev1.PodStatus
			atHome.PrependReactor("update", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				last = a.(clienttesting.UpdateAction).GetObject().(*corev1.Pod).Status
				return true, home, nil
			})
			shown := watch.NewFake()
			there.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) { return true, shown, nil })
			ctr := New(Config{Home: atHome, Target: place{there}, Nodes: []string{"b"}, Cluster: "aid", HostIP: netip.MustParseAddr("10.0.0.1"), NoHomeAPI: true,
				Offloaded: func(string) bool { return true }, Up: func() bool { return true }, Departed: func(string) {},
				Recorder: record.NewFakeRecorder(100), Log: slog.New(slog.DiscardHandler)})
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			ctr.life = ctx
			tw := ctr.watch("lab", "lab-a")
			away := running()
			away.Namespace, away.Labels, away.Annotations = "lab-a", map[string]string{policy.HomeUIDLabel: string(home.UID), policy.OriginLabel: "aid"},
				map[string]string{policy.HomePodAnnotation: home.Name, policy.HomeNamespaceAnnotation: "lab"}
			await.True(t, 20*time.Second, "the watch begins", tw.synced)
			shown.Add(away)
			await.True(t, 20*time.Second, "the pod is seen", func() bool { return len(tw.podsOf(home.UID)) == 1 })
			gone := away.DeepCopy()
			gone.DeletionTimestamp, gone.Status.Phase = home.DeletionTimestamp, corev1.PodFailed
			gone.Status.ContainerStatuses[1].State = exit(c.code)
			shown.Delete(gone)
			await.True(t, 20*time.Second, "the pod is gone", func() bool { return len(tw.podsOf(home.UID)) == 0 })
			if err := ctr.depart(ctx, home); err != nil {
				t.Fatal(err)
			}
			if end := last.ContainerStatuses[0].State.Terminated; last.Phase != c.want || end == nil || end.ExitCode != c.code || end.Message != "its own word" || condition(&last, corev1.DisruptionTarget) != nil {
				t.Errorf("%s %+v %+v", last.Phase, last.ContainerStatuses, last.Conditions)
			}
			ctr.ends.keep(types.NamespacedName{Namespace: "lab", Name: home.Name}, nil)
			if len(ctr.ends.of) != 0 {
				t.Error("the end of a pod that is gone from home is kept for ever")
			}
		})
	}
}

// While a pod that is deleted may still run away its phase says nothing else, but how its
// containers end is known.
func TestAPodThatIsDeletedIsNotTakenForReplaced(t *testing.T) {
	home := ungated()
	home.Status = Status(home, Away{Pod: running()}, view)
	home.DeletionTimestamp = &then
	away := running()
	away.DeletionTimestamp, away.Status.Phase = &then, corev1.PodFailed
	away.Status.ContainerStatuses[1].State = exit(3)
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
		home := ungated()
		home.Spec.RestartPolicy = corev1.RestartPolicyNever
		home.Status = Status(home, Away{Pod: running()}, view)
		st := Ended(home, corev1.PodFailed)
		if c.job != nil {
			st = Status(home, ofJob(c.job), view)
		}
		got := st.ContainerStatuses[0]
		if st.Phase != corev1.PodFailed || got.Ready || !strings.Contains(st.Message, c.message) || strings.Contains(st.Message, "lab-a") {
			t.Errorf("%s: %s %s, %+v", name, st.Phase, st.Message, got)
		}
		if c.code != 0 && (got.State.Terminated == nil || got.State.Terminated.ExitCode != c.code || got.ContainerID != "c-1") || c.code == 0 && got.State.Terminated != nil {
			t.Errorf("%s: %+v", name, got.State)
		}
		if cond := condition(&st, corev1.DisruptionTarget); c.disrupted != (cond != nil && cond.Status == corev1.ConditionTrue) {
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
	onFailure := ungated()
	onFailure.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	if w, err := Wrap(onFailure, "aid", ""); err != nil || w.Job.Spec.PodFailurePolicy != nil {
		t.Errorf("an API server takes no podFailurePolicy with OnFailure: %v", err)
	}
}

func ungatedNever() *corev1.Pod {
	p := ungated()
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	return p
}

// How the pod before ended stays in the status of the one in its place, whoever saw it end; while that waits its status is
// that of a container which crashes again and again.
func TestTheEndOfThePodBeforeIsKept(t *testing.T) {
	home, away := ungated(), running()
	away.Labels, away.Annotations = map[string]string{}, map[string]string{}
	replacement.Keep(away, replacement.AtOnce)
	home.Status = Status(home, Away{Pod: away}, view)
	for i := range 3 {
		gone := away.DeepCopy()
		gone.UID = types.UID(fmt.Sprint("u", i))
		gone.Status.Phase, gone.Status.Reason, gone.Status.Message = corev1.PodFailed, "Evicted", "over its limit"
		gone.Status.ContainerStatuses[1].State = exit(137)
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
		next.Status = *running().Status.DeepCopy()
		next.Status.ContainerStatuses[1].ContainerID = fmt.Sprint("d-", i)
		away = next
		home.Status = Status(home, Away{Pod: away}, view)
		c := home.Status.ContainerStatuses[0]
		if last := c.LastTerminationState.Terminated; last == nil || last.Reason != "Evicted" || last.Message != "over its limit" || last.ExitCode != 137 || c.RestartCount != int32(i+1) || c.State.Running == nil {
			t.Errorf("pod %d: %+v", i, c)
		}
	}
	// One that is replaced while it ends: its successor was made before anybody knew how.
	next, last := running(), away.DeepCopy()
	next.UID, next.Status.ContainerStatuses[1].ContainerID = "u9", "e-1"
	last.DeletionTimestamp, last.Status.ContainerStatuses[1].State = &then, exit(143)
	last.Status.Conditions = append(last.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler", Message: "for others"})
	other := home.DeepCopy()
	other.Status = Status(home, Away{Pod: next, last: last}, view)
	if end := other.Status.ContainerStatuses[0].LastTerminationState.Terminated; end == nil || end.Reason != "PreemptionByScheduler" || end.Message != "for others" || end.ExitCode != 143 {
		t.Errorf("preempted: %+v", end)
	}
	if again := Status(home, Away{Pod: away}, view); !equality.Semantic.DeepEqual(again, home.Status) {
		t.Error("applied twice")
	}
}
