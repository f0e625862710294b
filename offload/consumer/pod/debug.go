package pod

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
)

// debug puts ephemeral containers (kubectl debug) that the pod has at home into the
// away pod. Like a kubelet it starts each once: not again in a pod that was made
// in the place of the one it ran in.
func (c *Controller) debug(ctx context.Context, t *twin, home *corev1.Pod) error {
	if len(home.Spec.EphemeralContainers) == 0 {
		return nil
	}
	p := Current(t.podsOf(home.UID))
	if p == nil || p.DeletionTimestamp != nil || terminal(p.Status.Phase) {
		return nil
	}
	missing, refused := awayDebuggers(home, p)
	for _, r := range refused {
		c.cfg.Recorder.Event(home, corev1.EventTypeWarning, ReasonRefused, (&Refusal{Fields: r}).Error())
	}
	if len(missing) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"ephemeralContainers": missing}})
	if err != nil {
		return err
	}
	_, err = t.client.CoreV1().Pods(t.name).Patch(ctx, p.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: policy.FieldManager}, "ephemeralcontainers")
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		if c.checkTwin(ctx, t.home) {
			return errNotYet
		}
		c.cfg.Recorder.Event(home, corev1.EventTypeWarning, ReasonRefused, fmt.Sprintf("%s does not take the ephemeral container: %v", c.cfg.Target.Name(), err))
		c.queue.AddAfter(types.NamespacedName{Namespace: home.Namespace, Name: home.Name}, mintRetry)
		return nil
	}
	return ignoreGone(err)
}

// awayDebuggers are the ephemeral containers that the away pod lacks and is to
// have, and why others may not be there.
func awayDebuggers(home, away *corev1.Pod) (missing []corev1.EphemeralContainer, refused [][]RefusedField) {
	there := map[string]bool{}
	for i := range away.Spec.EphemeralContainers {
		there[away.Spec.EphemeralContainers[i].Name] = true
	}
	for i := range home.Spec.EphemeralContainers {
		e := home.Spec.EphemeralContainers[i].DeepCopy()
		if there[e.Name] || statusOf(home.Status.EphemeralContainerStatuses, e.Name) != nil {
			continue
		}
		plain := corev1.Container(e.EphemeralContainerCommon)
		var why []RefusedField
		refuseContainer(fmt.Sprintf("spec.ephemeralContainers[%d]", i), &plain, func(path, reason string) { why = append(why, RefusedField{path, reason}) })
		if why != nil {
			refused = append(refused, why)
			continue
		}
		redirectEnv(plain.Env, home)
		if away.Annotations[policy.HomeAddressesAnnotation] == policy.HomeAddressesOfPods {
			addressAtHome(plain.Env)
		}
		redirectAuthority(&plain)
		if derives(&away.Spec, servicesMap) {
			derivedFrom(servicesMap, &plain)
		}
		if reachesHome(away) {
			derivedFrom(homeapi.Variables, &plain)
		}
		e.EphemeralContainerCommon = corev1.EphemeralContainerCommon(plain)
		missing = append(missing, *e)
	}
	return missing, refused
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

// debuggers gives the statuses of ephemeral containers, by name. One that is gone
// with the pod it ran in has ended, nobody saw how.
func debuggers(home *corev1.Pod, away []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range home.Spec.EphemeralContainers {
		name := home.Spec.EphemeralContainers[i].Name
		old, now := statusOf(home.Status.EphemeralContainerStatuses, name), statusOf(away, name)
		switch {
		case old != nil && old.State.Terminated != nil:
			out = append(out, *old.DeepCopy())
		case now != nil:
			out = append(out, *now.DeepCopy())
		case old != nil:
			gone := *old.DeepCopy()
			gone.State, gone.Ready = corev1.ContainerState{Terminated: lastTermination(old, "")}, false
			out = append(out, gone)
		}
	}
	return out
}
