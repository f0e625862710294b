package pod

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"rivulet/offload/consumer/pod/translate"
)

// atOnce is how soon after its start a container has ended that could not run its program: times of statuses are seconds.
const atOnce = 2 * time.Second

// sayUnpermitted tells, once for each container, that a program may be one that the kernel does not start at a target:
// execve(2) refuses a file with capabilities that the container may not have, as ping and Telegraf have NET_RAW. The
// kubelet's status has only the exit code of the runtime (255) or of a shell (126).
func sayUnpermitted(events record.EventRecorder, home *corev1.Pod, now corev1.PodStatus) {
	for i := range now.ContainerStatuses {
		s, previous := &now.ContainerStatuses[i], ""
		code, ended := endedAtOnce(s)
		if was := translate.StatusOf(home.Status.ContainerStatuses, s.Name); !ended || was != nil && (was.State.Terminated != nil || was.RestartCount > 0) {
			continue
		}
		if s.RestartCount > 0 {
			previous = " --previous"
		}
		events.Event(home, corev1.EventTypeWarning, "OffloadNotPermitted", fmt.Sprintf(
			"container %s ended with %d at once; if its log has \"Operation not permitted\", its program has a capability in its file (getcap) that pods there do not have, NET_RAW as a rule: rivulet kubectl logs -n %s %s -c %s%s; keep such a pod at home: label rivulet.dev/offload=off in its template",
			s.Name, code, home.Namespace, home.Name, s.Name, previous))
	}
}

// endedAtOnce returns the exit code of a container whose last run ended as one does whose program was not started.
func endedAtOnce(s *corev1.ContainerStatus) (code int32, ok bool) {
	t := s.State.Terminated
	if t == nil {
		t = s.LastTerminationState.Terminated
	}
	if t == nil || t.ExitCode != 126 && t.ExitCode != 255 || t.StartedAt.IsZero() {
		return 0, false
	}
	return t.ExitCode, t.FinishedAt.Sub(t.StartedAt.Time) <= atOnce
}
