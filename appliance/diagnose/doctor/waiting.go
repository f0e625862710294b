package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/appliance/diagnose/why"
	"rivulet/appliance/health"
	"rivulet/offload/consumer/explain"
	"rivulet/offload/policy"
)

var podsWaiting = Probe{Kind: health.PodsWaiting, Title: "pods that do not run", Every: seldom, Run: probeWaiting}

// patience is how long a pod may take to start or to end.
const patience = 30 * time.Second

// mostNamed is how many pods are named beside the one that is explained.
const mostNamed = 5

// probeWaiting finds pods of this cluster and of virtual clusters of this device that should run and do not. It explains
// the one that waits longest, this cluster's own first, and names some of the others. Pods of peers are theirs to explain.
func probeWaiting(ctx context.Context, e *Env) Result {
	client, err := e.API()
	if err != nil {
		return e.unasked("the API server cannot be asked", err)
	}
	list, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return e.unasked("the API server cannot be asked", err)
	}
	st, _ := e.running(ctx)
	vclusters := why.VClustersOf(st.Consumers)
	waiting := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.Labels[policy.OriginLabel] != "" && vclusters.Of(&p) == nil || !waits(&p, e.Now())
	})
	if len(waiting) == 0 {
		return Passf("all run")
	}
	slices.SortFunc(waiting, func(x, y corev1.Pod) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	takeTurns(waiting)
	first, others := waiting[0], waiting[1:]
	facts, err := why.Facts(ctx, client, &first, st)
	if err != nil {
		return e.unasked("the API server cannot be asked", err)
	}
	reason := explain.Explain(facts).Reasons[0]
	text := nameOf(&first, vclusters) + ": " + reason.What + more(others, vclusters)
	cure := "rivulet why " + first.Namespace + "/" + first.Name
	if o := vclusters.Of(&first); o != nil {
		cure = "rivulet why " + o.Argument()
	}
	if reason.Cure != "" {
		cure = reason.Cure
	}
	return Warnf(cure, "%s", text)
}

// takeTurns puts the first pod of each virtual cluster before any second one, so that none crowds out the others.
func takeTurns(pods []corev1.Pod) {
	before, turn := map[string]int{}, map[types.NamespacedName]int{}
	name := func(p corev1.Pod) types.NamespacedName {
		return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	}
	for _, p := range pods {
		if of := p.Labels[policy.OriginLabel]; of != "" {
			turn[name(p)], before[of] = before[of], before[of]+1
		}
	}
	own := func(p corev1.Pod) int { return min(1, len(p.Labels[policy.OriginLabel])) }
	slices.SortStableFunc(pods, func(x, y corev1.Pod) int { return cmp.Or(own(x)-own(y), turn[name(x)]-turn[name(y)]) })
}

func nameOf(p *corev1.Pod, vclusters why.VClusters) string {
	if o := vclusters.Of(p); o != nil {
		return o.String()
	}
	return p.Namespace + "/" + p.Name
}

// more counts pods, and names some.
func more(pods []corev1.Pod, vclusters why.VClusters) string {
	if len(pods) == 0 {
		return ""
	}
	var names []string
	inside := 0
	for i := range pods {
		if vclusters.Of(&pods[i]) != nil {
			inside++
		}
		if i < mostNamed {
			names = append(names, nameOf(&pods[i], vclusters))
		}
	}
	text := fmt.Sprintf(", and %d more", len(pods))
	if inside > 0 {
		text += fmt.Sprintf(", %d of virtual clusters", inside)
	}
	text += " (rivulet pods): " + strings.Join(names, ", ")
	if len(pods) > mostNamed {
		text += ", ..."
	}
	return text
}

// waits reports whether a pod has exceeded the time to reach its desired state.
func waits(p *corev1.Pod, now time.Time) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
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
