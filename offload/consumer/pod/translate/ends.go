package translate

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/peer"
)

// reasonUnknown is a kubelet's reason for a container with an unknown exit.
const reasonUnknown = "ContainerStatusUnknown"

// endPolicy makes the Job of a pod with restartPolicy Never record, in its condition Failed, how that pod ended: the
// pod may be gone from the target before home has seen its end. Kubernetes writes the message, and keeps the pod until
// it is written.
func endPolicy() *batchv1.PodFailurePolicy {
	return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionFailJob, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
		{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn, Values: []int32{0}}},
	}}
}

// OfWrapper is the pod's state by its wrapper alone.
func OfWrapper(w Wrapper) (a Away) {
	if w.Job != nil {
		return ofJob(w.Job)
	}
	if w.ReplicaSet != nil {
		for _, cond := range w.ReplicaSet.Status.Conditions {
			if cond.Type == appsv1.ReplicaSetReplicaFailure && cond.Status == corev1.ConditionTrue {
				a.Trouble = cond.Message
			}
		}
	}
	return a
}

// ofJob is the pod's state by its Job.
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

// keptEnd parses the message that endPolicy causes. A disrupted pod has no container in it.
func keptEnd(message string) (container string, code int32) {
	var pod string
	if n, _ := fmt.Sscanf(message, "Container %s for pod %s failed with exit code %d", &container, &pod, &code); n < 3 {
		return "", 0
	}
	return container, code
}

// WithEnd is the home pod with the last seen state of its away pod.
func WithEnd(home, last *corev1.Pod) *corev1.Pod {
	home = home.DeepCopy()
	if last == nil || Terminal(home.Status.Phase) {
		return home
	}
	from := last.Status.DeepCopy()
	peer.Clean(from, peer.Prose)
	st := &home.Status
	st.InitContainerStatuses = Containers(st.InitContainerStatuses, from.InitContainerStatuses, home.Spec.InitContainers, RestartPolicy(home), nil)
	st.ContainerStatuses = Containers(st.ContainerStatuses, from.ContainerStatuses, home.Spec.Containers, RestartPolicy(home), nil)
	if st.Reason == "" {
		st.Reason, st.Message = from.Reason, from.Message
	}
	if why := Condition(from, corev1.DisruptionTarget); why != nil {
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

// unseen is the state of a container that ran and whose exit is unknown. An exit code would be invented, and a Job's
// podFailurePolicy would take it for the program's. A container that never ran stays waiting.
func unseen(c *corev1.ContainerStatus) corev1.ContainerState {
	if c.ContainerID == "" && c.State.Running == nil {
		return c.State
	}
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reasonUnknown, Message: messageUnseen}}
}

// disrupted is the condition by which Kubernetes marks pods that did not fail by themselves, as those lost with their
// node.
func disrupted(message string) corev1.PodCondition {
	return corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: ReasonGone, Message: message, LastTransitionTime: metav1.Now()}
}
