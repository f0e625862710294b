// Package places counts where pods run, at home, away and as tenants, and the free capacity there: for `rivulet
// status`, the status page and the metrics. It reads pods and the home node from the API server when it is called, and
// writes and stores nothing. While the API server does not answer there are no figures, and the rest of the status is
// shown without them.
package places

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	resourcehelper "k8s.io/component-helpers/resource"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/why"
	"rivulet/offload"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/policy"
)

// Count reads from the API server's cache, so it needs no informer: n are the pods by place, room has their requests by
// node, and the capacity of this cluster's own nodes, of which home is one. Both are empty while the API server does
// not answer.
func Count(ctx context.Context, client kubernetes.Interface, home string, consumers []offload.Consumer) (n api.Pods, room map[string]api.Room) {
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		ResourceVersion: "0",
		FieldSelector:   "status.phase!=Succeeded,status.phase!=Failed",
	})
	if err != nil {
		return n, nil
	}
	vclusters := why.VClustersOf(consumers)
	room, here := map[string]api.Room{}, map[string]bool{home: true}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0", LabelSelector: "!" + policy.VirtualNodeLabel})
	if err != nil {
		nodes = &corev1.NodeList{} // the pods are known
	}
	for _, node := range nodes.Items {
		r := api.Room{Allocatable: node.Status.Allocatable, Architecture: node.Status.NodeInfo.Architecture}
		for _, c := range node.Status.Conditions {
			if strings.HasSuffix(string(c.Type), "Pressure") && c.Status == corev1.ConditionTrue {
				r.Pressure = append(r.Pressure, string(c.Type))
			}
		}
		room[node.Name], here[node.Name] = r, true
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		switch {
		case !pod.Counts(p):
			continue
		case p.Labels[policy.OriginLabel] != "":
			n.Tenants++
			if vclusters.Of(p) != nil {
				n.VClusters++
			}
		case here[p.Spec.NodeName]:
			n.Home++
		case p.Spec.NodeName != "":
			n.Away++
		}
		if p.Spec.NodeName != "" {
			room[p.Spec.NodeName] = with(room[p.Spec.NodeName], p)
		}
	}
	return n, room
}

// with adds a pod's requests.
func with(r api.Room, p *corev1.Pod) api.Room {
	if r.Requested == nil {
		r.Requested = corev1.ResourceList{}
	}
	for name, q := range resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}) {
		sum := r.Requested[name]
		sum.Add(q)
		r.Requested[name] = sum
	}
	r.Pods++
	return r
}
