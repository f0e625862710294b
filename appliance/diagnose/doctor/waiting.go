package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/diagnose/why"
	"rivulet/appliance/health"
	"rivulet/offload/consumer/explain"
	"rivulet/offload/policy"
)

var podsWaiting = Probe{Kind: health.PodsWaiting, Title: "pods that do not run", Every: seldom, Run: probeWaiting}

// patience is how long a pod may take to start or to end.
const patience = 30 * time.Second

// probeWaiting finds pods of this cluster that should run and do not, and explains the one that waits longest.
func probeWaiting(ctx context.Context, e *Env) Result {
	client, err := e.API()
	if err != nil {
		return e.unasked("the API server cannot be asked", err)
	}
	list, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return e.unasked("the API server cannot be asked", err)
	}
	waiting := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !waits(&p, e.Now()) })
	if len(waiting) == 0 {
		return Passf("all run")
	}
	first := slices.MinFunc(waiting, func(x, y corev1.Pod) int { return x.CreationTimestamp.Compare(y.CreationTimestamp.Time) })
	st, _ := e.running(ctx)
	facts, err := why.Facts(ctx, client, &first, st)
	if err != nil {
		return e.unasked("the API server cannot be asked", err)
	}
	reason := explain.Explain(facts).Reasons[0]
	text := fmt.Sprintf("%s/%s: %s", first.Namespace, first.Name, reason.What)
	if n := len(waiting) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more (rivulet pods)", n)
	}
	cure := "rivulet why " + first.Namespace + "/" + first.Name
	if reason.Cure != "" {
		cure = reason.Cure
	}
	return Warnf(cure, "%s", text)
}

// waits reports whether a pod of this cluster has exceeded the time to reach its desired state.
func waits(p *corev1.Pod, now time.Time) bool {
	if p.Labels[policy.OriginLabel] != "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return false
	}
	if p.DeletionTimestamp != nil {
		return now.Sub(p.DeletionTimestamp.Time) > patience
	}
	since := p.CreationTimestamp.Time
	for _, c := range p.Status.Conditions {
		if c.Type != corev1.PodReady {
			continue
		}
		if c.Status == corev1.ConditionTrue {
			return false
		}
		if !c.LastTransitionTime.IsZero() {
			since = c.LastTransitionTime.Time
		}
	}
	return now.Sub(since) > patience
}
