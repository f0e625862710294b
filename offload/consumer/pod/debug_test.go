package pod

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/translate/translatetest"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/policy"
)

// A container that the provider refuses holds up no other, and ends with the reason.
func TestARefusedDebuggerHoldsUpNoOther(t *testing.T) {
	home, away := translatetest.Web(), translatetest.Running()
	home.Name, away.Name = "web", "web"
	for _, name := range []string{"forbidden", "plain"} {
		home.Spec.EphemeralContainers = append(home.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: "busybox"}})
	}
	client := fake.NewClientset(away)
	var patches []string
	client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		text := string(a.(clienttesting.PatchAction).GetPatch())
		if strings.Contains(text, "forbidden") {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web", errors.New("SYS_PTRACE is not lent"))
		}
		patches = append(patches, text)
		return true, away, nil
	})
	in := newShown(client)
	away.Labels = map[string]string{policy.HomeUIDLabel: string(home.UID)}
	in.pods.show(away)
	events := record.NewFakeRecorder(10)
	c := New(Config{Target: place{client}, Home: Home{Recorder: events}})
	c.twins.Ensure("lab", in.twin.Name, func() *twin.Twin { return in.twin })
	refused, err := c.debug(t.Context(), in.twin, home)
	if err != nil || len(patches) != 1 || !strings.Contains(patches[0], "plain") {
		t.Fatalf("started: %v (%v)", patches, err)
	}
	home.Status = translate.Status(home, translate.Away{Pod: away}, view)
	home.Status.EphemeralContainerStatuses = translate.WithRefused(home.Status.EphemeralContainerStatuses, refused)
	home.Status = translate.Status(home, translate.Away{Pod: away}, view) // which keeps it
	st := translate.StatusOf(home.Status.EphemeralContainerStatuses, "forbidden")
	if st == nil || st.State.Waiting == nil || st.State.Waiting.Reason != translate.ReasonRefused || !strings.Contains(st.State.Waiting.Message, "SYS_PTRACE is not lent") {
		t.Fatalf("kubectl debug shows nothing: %+v", home.Status.EphemeralContainerStatuses)
	}
	// It is not asked for again, and has ended a moment later.
	st.LastTerminationState.Terminated.FinishedAt = metav1.NewTime(time.Now().Add(-translate.RefusalShown))
	patches = nil
	refused, err = c.debug(t.Context(), in.twin, home)
	if err != nil || len(events.Events) != 1 {
		t.Errorf("asked again: %d events (%v)", len(events.Events), err)
	}
	all := translate.WithRefused(home.Status.EphemeralContainerStatuses, refused)
	if end := translate.StatusOf(all, "forbidden").State.Terminated; end == nil || end.Reason != translate.ReasonRefused || !strings.Contains(end.Message, "SYS_PTRACE") || len(all) != 1 {
		t.Errorf("ended: %+v", all)
	}
}

// What kubectl debug node/NAME makes of a virtual node ends, with the reason; pods that somebody
// makes again, or that the scheduler has placed, wait.
func TestAPodMadeForANodeByNameIsTurnedDown(t *testing.T) {
	c, p := New(Config{}), translatetest.Web()
	p.Spec.RestartPolicy, p.OwnerReferences = corev1.RestartPolicyNever, nil
	if !nobodys(p) {
		t.Fatal("nobody makes it again")
	}
	for what, change := range map[string]func(*corev1.Pod){
		"a Job's": func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Controller: ptr.To(true)}}
		},
		"scheduled": func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled}} },
		"restarted": func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways },
	} {
		other := p.DeepCopy()
		if change(other); nobodys(other) {
			t.Errorf("%s: it would fail", what)
		}
	}
	st := translate.Refused(p, "spec.hostPID")
	c.turnDown(p, &st)
	if st.Phase != corev1.PodPending || len(st.ContainerStatuses) != len(p.Spec.Containers) || st.ContainerStatuses[0].State.Waiting.Message != "spec.hostPID" {
		t.Fatalf("kubectl debug shows nothing: %+v", st)
	}
	for i := range st.ContainerStatuses {
		st.ContainerStatuses[i].LastTerminationState.Terminated.FinishedAt = metav1.NewTime(time.Now().Add(-translate.RefusalShown))
	}
	p.Status = st
	st = translate.Refused(p, "spec.hostPID")
	c.turnDown(p, &st)
	if st.Phase != corev1.PodFailed || st.Reason != translate.ReasonRefused || st.ContainerStatuses[0].State.Terminated.Message != "spec.hostPID" {
		t.Errorf("%+v", st)
	}
}
