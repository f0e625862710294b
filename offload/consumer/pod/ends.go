package pod

import (
	"fmt"
	"maps"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

// reasonUnknown is a kubelet's word for a container whose exit nobody saw.
const reasonUnknown = "ContainerStatusUnknown"

// ends are the last states of away pods that end, by the pod of home. A watch shows how a pod
// ended together with its end, and a cache keeps nothing of what is gone.
type ends struct {
	mu sync.Mutex
	of map[types.UID]*corev1.Pod
}

// note is called with each state before a cache shows it.
func (e *ends) note(p *corev1.Pod) {
	if p.DeletionTimestamp == nil && !terminal(p.Status.Phase) {
		return
	}
	uid := types.UID(p.Labels[policy.HomeUIDLabel])
	e.mu.Lock()
	defer e.mu.Unlock()
	if old := e.of[uid]; old == nil || old.UID == p.UID || !p.CreationTimestamp.Before(&old.CreationTimestamp) {
		e.of[uid] = p
	}
}

func (e *ends) get(uid types.UID) *corev1.Pod {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of[uid]
}

// keep forgets all pods of that name but the one that has it now, or nil.
func (e *ends) keep(k types.NamespacedName, home *corev1.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.of, func(uid types.UID, p *corev1.Pod) bool {
		return p.Annotations[policy.HomePodAnnotation] == k.Name && p.Annotations[policy.HomeNamespaceAnnotation] == k.Namespace && (home == nil || home.UID != uid)
	})
}

// endPolicy has the Job of a pod that is never restarted keep, in its condition Failed, how that pod
// ended: the pod may be gone from the target before home has seen it. Upstream writes the message,
// and a pod stays until it is written.
func endPolicy() *batchv1.PodFailurePolicy {
	return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionFailJob, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
		{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn, Values: []int32{0}}},
	}}
}

// ofJob is what a Job says of its pod.
func ofJob(job *batchv1.Job) (a Away) {
	for _, cond := range job.Status.Conditions {
		switch {
		case cond.Status != corev1.ConditionTrue:
		case cond.Type == batchv1.JobComplete:
			a.Finished = corev1.PodSucceeded
		case cond.Type == batchv1.JobFailed:
			a.Finished, a.Trouble = corev1.PodFailed, cond.Reason+": "+cond.Message
			a.Expired = cond.Reason == batchv1.JobReasonDeadlineExceeded
			if cond.Reason != batchv1.JobReasonPodFailurePolicy {
				continue
			}
			a.Trouble = "the pod was evicted, preempted or lost with its node"
			a.Failure, a.Code = keptEnd(cond.Message)
		}
	}
	return a
}

// keptEnd reads what endPolicy has a Job keep. Of a pod that was disrupted there is no container.
func keptEnd(message string) (container string, code int32) {
	var pod string
	if n, _ := fmt.Sscanf(message, "Container %s for pod %s failed with exit code %d", &container, &pod, &code); n < 3 {
		return "", 0
	}
	return container, code
}

// withEnd is the pod of home with how its away pod last ended, as far as that was seen.
func withEnd(home, last *corev1.Pod) *corev1.Pod {
	home = home.DeepCopy()
	if last == nil || terminal(home.Status.Phase) {
		return home
	}
	from := last.Status.DeepCopy()
	peer.Clean(from, peer.Prose)
	st := &home.Status
	st.InitContainerStatuses = containers(st.InitContainerStatuses, from.InitContainerStatuses, home.Spec.InitContainers, restart(home), nil)
	st.ContainerStatuses = containers(st.ContainerStatuses, from.ContainerStatuses, home.Spec.Containers, restart(home), nil)
	if st.Reason == "" {
		st.Reason, st.Message = from.Reason, from.Message
	}
	if why := condition(from, corev1.DisruptionTarget); why != nil {
		setCondition(home, st, *why)
	}
	return home
}

func ended(c *corev1.ContainerStatus, code int32, reason, message string) corev1.ContainerState {
	t := &corev1.ContainerStateTerminated{ContainerID: c.ContainerID, ExitCode: code, Reason: reason, Message: message}
	if c.State.Running != nil {
		t.StartedAt = c.State.Running.StartedAt
	}
	return corev1.ContainerState{Terminated: t}
}

const messageUnseen = "the container was gone before its exit was seen"

// unseen is the state of a container that ran and whose exit nobody saw. A code would be
// invented, and taken for the program's by a Job's podFailurePolicy. What never ran waits on.
func unseen(c *corev1.ContainerStatus) corev1.ContainerState {
	if c.ContainerID == "" && c.State.Running == nil {
		return c.State
	}
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reasonUnknown, Message: messageUnseen}}
}

// disrupted says of a pod that it did not fail by itself, as Kubernetes says it of pods that
// are lost with their node.
func disrupted(message string) corev1.PodCondition {
	return corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: ReasonGone, Message: message, LastTransitionTime: metav1.Now()}
}
