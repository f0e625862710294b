package resourcemetrics

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// answer is what was selected and measured: each object, their list and their table.
type answer struct {
	objects []any
	list    any
	table   metav1.Table
}

func (h handler) nodes(ctx context.Context, o metav1.ListOptions) (out answer, err error) {
	chosen, err := h.objects(ctx, kindNodes, "", o)
	if err != nil {
		return out, err
	}
	used := h.query(ctx, names(chosen))
	items := []v1beta1.NodeMetrics{}
	for i := range chosen {
		if u := used[chosen[i].Name]; u != nil && u.node != nil {
			items = append(items, nodeMetrics(&chosen[i], *u.node))
		}
	}
	slices.SortFunc(items, func(a, b v1beta1.NodeMetrics) int { return cmp.Compare(a.Name, b.Name) })
	out.list = v1beta1.NodeMetricsList{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "NodeMetricsList"}, Items: items}
	out.table = newTable()
	for _, m := range items {
		out.objects = append(out.objects, m)
		addRow(&out.table, m.ObjectMeta, []corev1.ResourceList{m.Usage}, m.Window)
	}
	return out, nil
}

// pods queries all nodes: metadata does not contain a pod's node, and a device has only one node of its own.
func (h handler) pods(ctx context.Context, namespace string, o metav1.ListOptions) (out answer, err error) {
	chosen, err := h.objects(ctx, kindPods, namespace, o)
	if err != nil {
		return out, err
	}
	var used map[string]*usage
	if len(chosen) > 0 {
		nodes, err := h.objects(ctx, kindNodes, "", metav1.ListOptions{})
		if err != nil {
			return out, err
		}
		used = h.query(ctx, names(nodes))
	}
	items := []v1beta1.PodMetrics{}
	for i := range chosen {
		p := &chosen[i]
		for _, u := range used {
			if m, ok := u.pods[podKey{p.Namespace, p.Name, string(p.UID)}]; ok {
				items = append(items, podMetrics(p, m))
				break
			}
		}
	}
	slices.SortFunc(items, func(a, b v1beta1.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	out.list = v1beta1.PodMetricsList{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "PodMetricsList"}, Items: items}
	out.table = newTable()
	for _, m := range items {
		var used []corev1.ResourceList
		for _, c := range m.Containers {
			used = append(used, c.Usage)
		}
		out.objects = append(out.objects, m)
		addRow(&out.table, m.ObjectMeta, used, m.Window)
	}
	return out, nil
}

func names(objects []metav1.PartialObjectMetadata) []string {
	out := make([]string, len(objects))
	for i := range objects {
		out[i] = objects[i].Name
	}
	return out
}
