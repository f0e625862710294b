package pod

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
)

func TestAProgramThatIsNotPermittedIsToldOnce(t *testing.T) {
	start := metav1.NewTime(time.Now().Truncate(time.Second))
	ended := func(code int32, after time.Duration) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, StartedAt: start, FinishedAt: metav1.NewTime(start.Add(after))}}
	}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, tt := range map[string]struct {
		was, now corev1.ContainerStatus
		told     bool
	}{
		"not started by the runtime": {corev1.ContainerStatus{State: runs}, corev1.ContainerStatus{State: ended(255, 0)}, true},
		"not started by a shell":     {corev1.ContainerStatus{}, corev1.ContainerStatus{State: ended(126, time.Second)}, true},
		"seen when it waits":         {corev1.ContainerStatus{State: runs}, corev1.ContainerStatus{State: waits, LastTerminationState: ended(255, 0), RestartCount: 1}, true},
		"told before":                {corev1.ContainerStatus{State: ended(255, 0)}, corev1.ContainerStatus{State: waits, LastTerminationState: ended(255, 0), RestartCount: 1}, false},
		"its second end":             {corev1.ContainerStatus{State: waits, RestartCount: 1}, corev1.ContainerStatus{State: ended(255, 0), RestartCount: 1}, false},
		"it ran for a while":         {corev1.ContainerStatus{State: runs}, corev1.ContainerStatus{State: ended(255, time.Minute)}, false},
		"another code":               {corev1.ContainerStatus{State: runs}, corev1.ContainerStatus{State: ended(1, 0)}, false},
		"it runs":                    {corev1.ContainerStatus{}, corev1.ContainerStatus{State: runs}, false},
	} {
		t.Run(name, func(t *testing.T) {
			events := record.NewFakeRecorder(2)
			tt.was.Name, tt.now.Name = "ping", "ping"
			home := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "p"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{tt.was}}}
			sayUnpermitted(events, home, corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{tt.now}})
			switch {
			case tt.told != (len(events.Events) == 1):
				t.Errorf("%d events", len(events.Events))
			case tt.told:
				e := <-events.Events
				if again := strings.Contains(e, "-c ping --previous;"); !strings.Contains(e, "NET_RAW") || !strings.Contains(e, "rivulet kubectl logs -n lab p -c ping") || again != (tt.now.RestartCount > 0) {
					t.Error(e)
				}
			}
		})
	}
}
