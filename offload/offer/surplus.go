package offer

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Surplus chooses the pods to hand back so that the rest fits into the part: the newest first, and only those whose end
// helps. Resources that the part does not list are ignored. The pods are unfinished ones.
func Surplus(part corev1.ResourceList, pods []*corev1.Pod) []*corev1.Pod {
	use := corev1.ResourceList{}
	for _, p := range pods {
		add(use, Requests(p))
	}
	newest := slices.Clone(pods)
	slices.SortFunc(newest, func(a, b *corev1.Pod) int {
		if c := b.CreationTimestamp.Compare(a.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(b.Namespace+"/"+b.Name, a.Namespace+"/"+a.Name)
	})
	var out []*corev1.Pod
	for _, p := range newest {
		helps := false
		asked := Requests(p)
		for name, q := range asked {
			most, bounded := part[name]
			used := use[name]
			helps = helps || bounded && used.Cmp(most) > 0 && q.Sign() > 0
		}
		if helps {
			sub(use, asked)
			out = append(out, p)
		}
	}
	return out
}
