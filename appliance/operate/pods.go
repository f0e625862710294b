package operate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/diagnose/why"
	"rivulet/offload/consumer/explain"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
)

// Pod is a pod with its place: a line of `rivulet pods`.
type Pod struct {
	Place      string    `json:"place"` // home, away, tenant; waiting: no node yet
	Node       string    `json:"node,omitempty"`
	Namespace  string    `json:"namespace"`
	Pod        string    `json:"pod"`
	State      string    `json:"state"`
	Ready      int       `json:"ready"`
	Containers int       `json:"containers"`
	Restarts   int32     `json:"restarts"`
	Created    time.Time `json:"created"`
	IP         string    `json:"ip,omitempty"`
	Images     []string  `json:"images"`

	// Origin is the pod as the user of a virtual cluster of this device knows it; nil: it is of none.
	Origin *why.Origin `json:"origin,omitempty"`

	Ended bool `json:"-"` // finished, or failed for good
}

// Pods are those of a namespace (empty: of all), by place.
func (c Cluster) Pods(ctx context.Context, namespace string) ([]Pod, error) {
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("nodes: %w; see: rivulet status", err)
	}
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("pods: %w; see: rivulet status", err)
	}
	st, _ := c.Status(ctx) // without a supervisor, pods of virtual clusters have the names that they have here
	return PodsByPlace(pods.Items, nodes.Items, why.VClustersOf(st.Consumers)), nil
}

// places are in the order of the output.
var places = []string{"waiting", "home", "away", "tenant"}

// PodsByPlace are the pods in the order of place, node, virtual cluster, namespace and name.
func PodsByPlace(pods []corev1.Pod, nodes []corev1.Node, vclusters why.VClusters) []Pod {
	virtual, silent := map[string]string{}, map[string]bool{}
	for i := range nodes {
		if n := &nodes[i]; n.Labels[policy.VirtualNodeLabel] != "" {
			virtual[n.Name], silent[n.Name] = cmp.Or(n.Labels[policy.TargetLabel], n.Name), !ready(n)
		}
	}
	rows := make([]Pod, 0, len(pods))
	for i := range pods {
		p := &pods[i]
		r := Pod{Place: "home", Node: p.Spec.NodeName, Namespace: p.Namespace, Pod: p.Name, State: explain.State(p), Containers: len(p.Spec.Containers),
			Created: p.CreationTimestamp.Time, IP: p.Status.PodIP, Origin: vclusters.Of(p)}
		target, away := virtual[p.Spec.NodeName]
		if away {
			r.Node = target
		}
		switch {
		case p.Labels[policy.OriginLabel] != "":
			r.Place = "tenant"
		case p.Spec.NodeName == "", p.Status.Reason == translate.ReasonRefused: // it is nowhere
			r.Place = "waiting"
		case away:
			r.Place = "away"
		}
		r.Ended = p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if r.Place == "away" && silent[p.Spec.NodeName] && !r.Ended && p.DeletionTimestamp == nil {
			r.State = string(corev1.PodUnknown)
		}
		for _, s := range p.Status.ContainerStatuses {
			r.Restarts += s.RestartCount
			if s.Ready {
				r.Ready++
			}
		}
		for i := range p.Spec.Containers {
			r.Images = append(r.Images, p.Spec.Containers[i].Image)
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(x, y Pod) int {
		return cmp.Or(slices.Index(places, x.Place)-slices.Index(places, y.Place), cmp.Compare(x.Node, y.Node), cmp.Compare(x.vcluster(), y.vcluster()), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Pod, y.Pod))
	})
	return rows
}

// vcluster is the virtual cluster of this device that the pod is of; empty: none.
func (p *Pod) vcluster() string {
	if p.Origin == nil {
		return ""
	}
	return p.Origin.VCluster
}
