package replacement

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A pod that fails repeatedly is replaced at the intervals in which a kubelet restarts a container: at once, then after
// 10 s, 20 s and so on, up to 5 minutes; the sequence starts again when it has run for a while.
const (
	soonest = 10 * time.Second
	longest = 5 * time.Minute
	steady  = 10 * time.Minute
)

// longestWord bounds the recorded message of a pod's end, for each of its containers.
const longestWord = 512

// Ending is how a record ended. If the pod was ended as a whole, each container has the pod's reason and message.
type Ending struct {
	Failures   int                                        `json:"failures"` // in a row, this one included
	Containers map[string]corev1.ContainerStateTerminated `json:"containers,omitempty"`
}

// Before is how the predecessor of p ended; empty for a first one.
func Before(p *corev1.Pod) (e Ending) {
	if json.Unmarshal([]byte(p.Annotations[predecessorAnnotation]), &e) != nil {
		return Ending{}
	}
	return e
}

// EndOf is how p has ended. A deleted pod has not failed.
func EndOf(p *corev1.Pod) Ending {
	e := Ending{Containers: map[string]corev1.ContainerStateTerminated{}}
	reason, message := p.Status.Reason, p.Status.Message
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			reason, message = cmp.Or(reason, c.Reason), cmp.Or(message, c.Message)
		}
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if t := list[i].State.Terminated; t != nil && (t.ExitCode != 0 || reason != "") {
				one := *t
				one.Reason, one.Message = cmp.Or(reason, t.Reason), cmp.Or(message, t.Message)
				if len(one.Message) > longestWord {
					one.Message = strings.ToValidUTF8(one.Message[:longestWord], "")
				}
				e.Containers[list[i].Name] = one
			}
		}
	}
	if p.DeletionTimestamp == nil && Ended(p) {
		e.Failures = 1
		if ended(p).Sub(p.CreationTimestamp.Time) < steady {
			e.Failures += max(Before(p).Failures, 0)
		}
	}
	return e
}

// ended is when the last of the pod's containers ended; its creation, if none ran.
func ended(p *corev1.Pod) time.Time {
	last := p.CreationTimestamp.Time
	for i := range p.Status.ContainerStatuses {
		if t := p.Status.ContainerStatuses[i].State.Terminated; t != nil && t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	return last
}

// BackOff is how much longer the successor of a failed pod waits. A clock that was set back does not delay it.
func BackOff(p *corev1.Pod, now time.Time) time.Duration {
	e := EndOf(p)
	from, wait := p.CreationTimestamp.Time, soonest
	switch {
	case e.Failures == 0:
		return 0
	case e.Failures > 1:
		from, wait = ended(p), min(soonest<<min(e.Failures-2, 10), longest)
	}
	if since := now.Sub(from); since >= 0 && since < wait {
		return wait - since
	}
	return 0
}
