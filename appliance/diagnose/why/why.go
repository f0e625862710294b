// Package why collects the facts for the answers of offload/consumer/explain: from home's API server, and from a status
// of the supervisor. It writes nothing.
package why

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/offload/consumer/explain"
)

// NamespaceOf is the namespace of an object, "" if it has none; a namespace is its own.
func NamespaceOf(object any) string {
	if ns, ok := object.(*corev1.Namespace); ok {
		return ns.Name
	}
	if m, ok := object.(metav1.Object); ok {
		return m.GetNamespace()
	}
	return ""
}

// Facts are those of an object. The status is the zero value without a running supervisor.
func Facts(ctx context.Context, client kubernetes.Interface, object any, st api.Status) (explain.Facts, error) {
	f, err := ClusterFacts(ctx, client, st)
	if p, ok := object.(*corev1.Pod); ok {
		f.Pod = p
	} else {
		f.Object = object
	}
	if ns := NamespaceOf(object); ns != "" && err == nil {
		err = NamespaceFacts(ctx, client, &f, ns)
	}
	return f, err
}

// ClusterFacts are those that all objects have in common.
func ClusterFacts(ctx context.Context, client kubernetes.Interface, st api.Status) (explain.Facts, error) {
	f := explain.Facts{Now: time.Now(), UsedCPU: -1, Links: map[string]explain.LinkState{}, Here: st.Name, Running: st.Name != ""}
	var errs []error
	read := func(err error) { errs = append(errs, err) }
	// From the API server's cache, because these reads are repeated often.
	all := metav1.ListOptions{ResourceVersion: "0"}
	nodes, err := client.CoreV1().Nodes().List(ctx, all)
	read(err)
	pods, err := client.CoreV1().Pods("").List(ctx, all)
	read(err)
	volumes, err := client.CoreV1().PersistentVolumes().List(ctx, all)
	read(err)
	classes, err := client.StorageV1().StorageClasses().List(ctx, all)
	read(err)
	ingressClasses, err := client.NetworkingV1().IngressClasses().List(ctx, all)
	read(err)
	if err := errors.Join(errs...); err != nil {
		return f, err
	}
	f.Nodes, f.Pods, f.Volumes, f.Classes, f.IngressClasses = nodes.Items, pods.Items, volumes.Items, classes.Items, ingressClasses.Items
	for _, v := range st.PeerList() {
		link := explain.LinkState{Name: v.Name, Connected: v.State == peer.Connected, Why: v.Reason, RTT: v.RTT, LendsNothing: v.LendsNothing, Unchosen: v.Unchosen}
		if v.Way != nil {
			link.Path = v.Way.Path
		}
		f.Links[string(v.ID)] = link
	}
	for _, p := range st.Health {
		f.Problems = append(f.Problems, explain.Problem{Code: p.Code, Subject: p.Subject, Text: p.Text, Cure: p.Cure})
	}
	return f, nil
}

// NamespaceFacts adds those that all objects of a namespace have in common.
func NamespaceFacts(ctx context.Context, client kubernetes.Interface, f *explain.Facts, ns string) error {
	var errs []error
	read := func(err error) { errs = append(errs, err) }
	all, err := metav1.ListOptions{ResourceVersion: "0"}, error(nil)
	f.Namespace, err = client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
	read(err)
	events, err := client.CoreV1().Events(ns).List(ctx, all)
	read(err)
	sets, err := client.AppsV1().ReplicaSets(ns).List(ctx, all)
	read(err)
	jobs, err := client.BatchV1().Jobs(ns).List(ctx, all)
	read(err)
	services, err := client.CoreV1().Services(ns).List(ctx, all)
	read(err)
	endpoints, err := client.DiscoveryV1().EndpointSlices(ns).List(ctx, all)
	read(err)
	claims, err := client.CoreV1().PersistentVolumeClaims(ns).List(ctx, all)
	read(err)
	quotas, err := client.CoreV1().ResourceQuotas(ns).List(ctx, all)
	read(err)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	f.Events, f.ReplicaSets, f.Jobs, f.Services, f.Slices, f.Claims, f.Quotas = events.Items, sets.Items, jobs.Items, services.Items, endpoints.Items, claims.Items, quotas.Items
	return nil
}
