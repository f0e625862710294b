package translate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
)

// RefusalShown is how long a refused container waits before it ends: kubectl debug shows the reason of a waiting
// container, and reads the logs of an ended one. Times in a status are whole seconds.
const RefusalShown = 2 * time.Second

// RefusedContainer is the status of a container that is not started. It waits; its end, and the time of the refusal,
// are in its last state.
func RefusedContainer(name, image, why string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, Image: image, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: ReasonRefused, Message: why}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: ReasonRefused, Message: why, ExitCode: 128, FinishedAt: metav1.Now()}}}
}

// EndRefused ends refused containers whose refusal was shown for long enough; left is the time until the others are
// due.
func EndRefused(all []corev1.ContainerStatus, now time.Time) (ended []corev1.ContainerStatus, left time.Duration) {
	for _, st := range all {
		if !isRefused(&st) {
			continue
		}
		if rest := RefusalShown - now.Sub(st.LastTerminationState.Terminated.FinishedAt.Time); rest > 0 && rest <= RefusalShown {
			left = max(left, rest)
			continue
		}
		st.State, st.LastTerminationState = st.LastTerminationState, corev1.ContainerState{}
		ended = append(ended, st)
	}
	return ended, left
}

// isRefused reports whether the status is that of RefusedContainer.
func isRefused(st *corev1.ContainerStatus) bool {
	return st.State.Waiting != nil && st.State.Waiting.Reason == ReasonRefused && st.LastTerminationState.Terminated != nil
}

// AwayDebuggers are the ephemeral containers that the away pod still needs, and why others, by name, are refused.
func AwayDebuggers(home, away *corev1.Pod) (missing []corev1.EphemeralContainer, refused map[string]string) {
	there := map[string]bool{}
	for i := range away.Spec.EphemeralContainers {
		there[away.Spec.EphemeralContainers[i].Name] = true
	}
	refused = map[string]string{}
	for i := range home.Spec.EphemeralContainers {
		e := home.Spec.EphemeralContainers[i].DeepCopy()
		if there[e.Name] || StatusOf(home.Status.EphemeralContainerStatuses, e.Name) != nil {
			continue
		}
		plain := corev1.Container(e.EphemeralContainerCommon)
		var why []RefusedField
		refuseContainer(fmt.Sprintf("spec.ephemeralContainers[%d]", i), &plain, func(path, reason string) { why = append(why, RefusedField{path, reason}) })
		if why != nil {
			refused[e.Name] = (&Refusal{Fields: why}).Error()
			continue
		}
		redirectEnv(plain.Env, home)
		if away.Annotations[policy.HomeAddressesAnnotation] == policy.HomeAddressesOfPods {
			addressAtHome(plain.Env)
		}
		redirectAuthority(&plain)
		if Derives(&away.Spec, ServicesMap) {
			DerivedFrom(ServicesMap, &plain)
		}
		if reachesHome(away) {
			DerivedFrom(homeapi.Variables, &plain)
			passProxy(&plain)
		}
		e.EphemeralContainerCommon = corev1.EphemeralContainerCommon(plain)
		missing = append(missing, *e)
	}
	return missing, refused
}

// WithRefused adds the statuses of refused ephemeral containers.
func WithRefused(all, refused []corev1.ContainerStatus) []corev1.ContainerStatus {
	for _, r := range refused {
		if old := StatusOf(all, r.Name); old != nil {
			*old = r
		} else {
			all = append(all, r)
		}
	}
	return all
}

// reachesHome reports whether the names of home's API server are in the pod's /etc/hosts.
func reachesHome(away *corev1.Pod) bool {
	for _, a := range away.Spec.HostAliases {
		for _, name := range a.Hostnames {
			if name == homeapi.Host {
				return true
			}
		}
	}
	return false
}

// debuggers returns the statuses of ephemeral containers, by name. One that is gone with its pod has ended, in an
// unknown way.
func debuggers(home *corev1.Pod, away []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range home.Spec.EphemeralContainers {
		name := home.Spec.EphemeralContainers[i].Name
		old, now := StatusOf(home.Status.EphemeralContainerStatuses, name), StatusOf(away, name)
		switch {
		case old != nil && (old.State.Terminated != nil || isRefused(old)):
			out = append(out, *old.DeepCopy())
		case now != nil:
			st, spec := *now.DeepCopy(), corev1.Container(home.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			asAtHome(&st, old, &spec)
			out = append(out, st)
		case old != nil:
			gone := *old.DeepCopy()
			gone.State, gone.Ready = ended(old, 137, reasonUnknown, messageUnseen), false // kubectl debug waits for an end
			out = append(out, gone)
		}
	}
	return out
}
