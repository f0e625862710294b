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

// defaultPods is the number of pods without a limit or quota.
const defaultPods = 110

// Room is what pods of home may request in the namespace, in total: what the limits allow, and what quotas leave after
// the usage of others. own are the present requests of home's pods, which are part of the quotas' usage. It is pure.
//
//	room(r) = min( limits(r), min over quotas ( hard(r) − (used(r) − own(r)) ) ), never below zero
//
// A resource in neither is not offered: it cannot be promised.
func Room(limits corev1.ResourceList, quotas []corev1.ResourceQuota, own corev1.ResourceList) corev1.ResourceList {
	room := limits.DeepCopy()
	if room == nil {
		room = corev1.ResourceList{}
	}
	for i := range quotas {
		if len(quotas[i].Spec.Scopes) > 0 || quotas[i].Spec.ScopeSelector != nil {
			continue // its scope cannot be evaluated here; the campus refuses what exceeds it
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

// counted is the resource that a quota's key bounds. Limits of pods are at least their requests, so a quota of limits
// bounds requests as well.
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

// asks are the requests of home's pods among those listed.
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
