package external

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"rivulet/offload/offer"
	"rivulet/offload/target/external/rewrite"
)

// defaultPods is how many pods there may be where neither limit nor quota says.
const defaultPods = 110

// Room is what pods of home may ask for in the namespace, in all: what the limits
// allow, and what quotas leave when what others use is taken off. own is what home's
// pods ask for there now; it is counted in the quotas' use, and theirs to keep. It is
// pure.
//
//	room(r) = min( limits(r), min over quotas ( hard(r) − (used(r) − own(r)) ) ), never below zero
//
// A resource that neither names is not offered: it cannot be promised.
func Room(limits corev1.ResourceList, quotas []corev1.ResourceQuota, own corev1.ResourceList) corev1.ResourceList {
	room := limits.DeepCopy()
	if room == nil {
		room = corev1.ResourceList{}
	}
	for i := range quotas {
		if len(quotas[i].Spec.Scopes) > 0 || quotas[i].Spec.ScopeSelector != nil {
			continue // which pods it means is not told from here; the campus will say so
		}
		status := quotas[i].Status
		for _, key := range slices.Sorted(maps.Keys(status.Hard)) {
			name, ok := counted(key)
			if !ok {
				continue
			}
			left := status.Hard[key].DeepCopy()
			others := status.Used[key].DeepCopy()
			others.Sub(own[name])
			if others.Sign() > 0 {
				left.Sub(others)
			}
			if left.Sign() < 0 {
				left = resource.Quantity{Format: left.Format}
			}
			if have, bounded := room[name]; !bounded || left.Cmp(have) < 0 {
				room[name] = left
			}
		}
	}
	if _, ok := room[corev1.ResourcePods]; !ok {
		room[corev1.ResourcePods] = *resource.NewQuantity(defaultPods, resource.DecimalSI)
	}
	return room
}

// counted is the resource that a quota's key bounds. What pods are limited to is at
// least what they ask for, so a quota of limits bounds that as well.
func counted(key corev1.ResourceName) (corev1.ResourceName, bool) {
	switch key {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
		return key, true
	case corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage:
		return corev1.ResourceName(strings.TrimPrefix(string(key), "limits.")), true
	case "count/pods":
		return corev1.ResourcePods, true
	}
	name, ok := strings.CutPrefix(string(key), corev1.DefaultResourceRequestsPrefix)
	if !ok || name == "storage" {
		return "", false
	}
	return corev1.ResourceName(name), true
}

// asks is what our pods of home ask for, of those listed.
func asks(pods []corev1.Pod) corev1.ResourceList {
	total := corev1.ResourceList{}
	for i := range pods {
		p := &pods[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || p.Labels[PartLabel] != "" || p.Labels[rewrite.HomeLabel] == "" {
			continue
		}
		for name, q := range offer.Requests(p) {
			sum := total[name]
			sum.Add(q)
			total[name] = sum
		}
	}
	return total
}
