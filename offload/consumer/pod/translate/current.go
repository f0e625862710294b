package translate

import corev1 "k8s.io/api/core/v1"

// Current chooses, of the pods of one wrapper, the one that represents the home pod: the youngest that lives; otherwise
// one that ended and is not replaced; otherwise one that is being deleted. It is nil without any.
func Current(pods []*corev1.Pod) *corev1.Pod {
	var best *corev1.Pod
	for _, p := range pods {
		if best == nil || Better(p, best) {
			best = p
		}
	}
	return best
}

// Better reports whether a represents the home pod rather than b: see Current.
func Better(a, b *corev1.Pod) bool {
	if ra, rb := rank(a), rank(b); ra != rb {
		return ra > rb
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return b.CreationTimestamp.Before(&a.CreationTimestamp)
	}
	return a.UID > b.UID
}

func rank(p *corev1.Pod) int {
	switch {
	case !Terminal(p.Status.Phase) && p.DeletionTimestamp == nil:
		return 3
	case Terminal(p.Status.Phase) && RestartPolicy(p) != corev1.RestartPolicyAlways:
		return 2
	case p.DeletionTimestamp != nil && !Terminal(p.Status.Phase):
		return 1
	}
	return 0
}
