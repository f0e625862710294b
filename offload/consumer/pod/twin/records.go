package twin

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/replacement"
)

// records lists the records with the index value, the current one of the home pod first.
func (t *Twin) records(index, value string) []translate.Wrapper {
	objs, _ := t.pods.GetIndexer().ByIndex(index, value)
	var pods []*corev1.Pod
	for _, o := range objs {
		if p := o.(*corev1.Pod); replacement.IsRecord(p) {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		switch {
		case translate.Better(a, b):
			return -1
		case translate.Better(b, a):
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	out := make([]translate.Wrapper, 0, len(pods))
	for _, p := range pods {
		out = append(out, translate.Wrapper{Pod: p})
	}
	return out
}
