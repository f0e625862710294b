package resourcemetrics

import (
	"cmp"
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// answer is what was chosen and measured, in one of two kinds.
type answer interface {
	len() int
	first() any
	list() any
	table() *metav1.Table
}

type (
	nodesAnswer []v1beta1.NodeMetrics
	podsAnswer  []v1beta1.PodMetrics
)

func (a nodesAnswer) len() int   { return len(a) }
func (a nodesAnswer) first() any { return a[0] }
func (a nodesAnswer) list() any {
	return v1beta1.NodeMetricsList{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "NodeMetricsList"}, Items: append([]v1beta1.NodeMetrics{}, a...)}
}

func (a podsAnswer) len() int   { return len(a) }
func (a podsAnswer) first() any { return a[0] }
func (a podsAnswer) list() any {
	return v1beta1.PodMetricsList{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "PodMetricsList"}, Items: append([]v1beta1.PodMetrics{}, a...)}
}

func (h handler) nodes(ctx context.Context, o metav1.ListOptions) (answer, error) {
	chosen, err := h.objects(ctx, kindNodes, "", o)
	if err != nil {
		return nil, err
	}
	used := h.ask(ctx, names(chosen))
	var out nodesAnswer
	for i := range chosen {
		if u := used[chosen[i].Name]; u != nil && u.node != nil {
			out = append(out, nodeMetrics(&chosen[i], *u.node))
		}
	}
	slices.SortFunc(out, func(a, b v1beta1.NodeMetrics) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// pods asks all nodes: which node a pod is on is not in its metadata, and a device
// has one node of its own.
func (h handler) pods(ctx context.Context, namespace string, o metav1.ListOptions) (answer, error) {
	chosen, err := h.objects(ctx, kindPods, namespace, o)
	if err != nil {
		return nil, err
	}
	if len(chosen) == 0 {
		return podsAnswer(nil), nil
	}
	nodes, err := h.objects(ctx, kindNodes, "", metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	used := h.ask(ctx, names(nodes))
	var out podsAnswer
	for i := range chosen {
		p := &chosen[i]
		for _, u := range used {
			if m, ok := u.pods[podKey{p.Namespace, p.Name, string(p.UID)}]; ok {
				out = append(out, podMetrics(p, m))
				break
			}
		}
	}
	slices.SortFunc(out, func(a, b v1beta1.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

func names(objects []metav1.PartialObjectMetadata) []string {
	out := make([]string, len(objects))
	for i := range objects {
		out[i] = objects[i].Name
	}
	return out
}
