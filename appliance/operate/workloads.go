package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/diagnose/why"
	"rivulet/offload/consumer/explain"
	"rivulet/offload/policy"
)

// PageOfWorkloads bounds the pods, and the namespaces, of Workloads.
const PageOfWorkloads = 100

// maxReasons bounds explanations, which need the objects of the pod's namespace.
const maxReasons = 50

// Workloads are the namespaces and pods of a cluster, a page of each.
type Workloads struct {
	// Namespaces are those that were selected, and MoreNamespaces counts those behind them.
	Namespaces     []Namespace
	MoreNamespaces int
	// Places have the pods: those that wait first, then home, each target, and tenants.
	Places []Place
	// More counts pods behind these, Ended those that have run to their end, which are left out.
	More, Ended int
	Exposed     []Exposed
	MoreExposed int
}

// Place has the pods of one place and node.
type Place struct {
	Place string // as in Pod
	Node  string // empty for pods that wait for a node
	Pods  []Workload
}

// Workload is a pod, and for one that waits or fails the first reason.
type Workload struct {
	Pod
	Why *explain.Reason
}

// Selection is what Workloads have: of one namespace, or of all but the cluster's own unless System is set.
type Selection struct {
	Namespace string
	System    bool
	// Filter is a part of the NAMESPACE/NAME, the state or the node of a pod, its name in a virtual cluster, or of the name of a
	// namespace.
	Filter string
	// From is how many pods, and namespaces, are before these.
	From int
}

func (s Selection) has(namespace string) bool {
	return s.Namespace == namespace || s.Namespace == "" && (s.System || !policy.System(namespace))
}

// Workloads are read from the API server's cache. Without a supervisor the states of links are missing in reasons.
func (c Cluster) Workloads(ctx context.Context, s Selection) (w Workloads, err error) {
	client, err := c.Client()
	if err != nil {
		return w, err
	}
	st, _ := c.Status(ctx)
	facts, err := why.ClusterFacts(ctx, client, st)
	if err != nil {
		return w, fmt.Errorf("pods and nodes: %w; see: rivulet status", err)
	}
	all, err := c.Namespaces(ctx)
	if err != nil {
		return w, err
	}
	all = slices.DeleteFunc(all, func(n Namespace) bool { return !s.has(n.Name) })
	all = slices.DeleteFunc(all, func(n Namespace) bool { return !strings.Contains(n.Name, s.Filter) })
	w.Namespaces, w.MoreNamespaces = bound(all[min(max(s.From, 0), len(all)):], PageOfWorkloads)
	pods := slices.DeleteFunc(slices.Clone(facts.Pods), func(p corev1.Pod) bool { return !s.has(p.Namespace) })
	reasons := &reasons{ctx: ctx, client: client, cluster: facts, of: map[string]explain.Facts{}}
	w.place(pods, facts.Nodes, why.VClustersOf(st.Consumers), s, reasons.first)
	cached := metav1.ListOptions{ResourceVersion: "0"}
	services, err := client.CoreV1().Services(s.Namespace).List(ctx, cached)
	if err != nil {
		return w, fmt.Errorf("services: %w; see: rivulet status", err)
	}
	ingresses, err := client.NetworkingV1().Ingresses(s.Namespace).List(ctx, cached)
	if err != nil {
		return w, fmt.Errorf("ingresses: %w; see: rivulet status", err)
	}
	exposed := slices.DeleteFunc(ExposedBy(services.Items, ingresses.Items, st), func(e Exposed) bool { return !s.has(e.Namespace) })
	w.Exposed, w.MoreExposed = bound(exposed, maxExposed)
	return w, nil
}

// bound cuts a list, and counts what is left out.
func bound[T any](list []T, most int) ([]T, int) {
	n := min(len(list), most)
	return list[:n], len(list) - n
}

// place fills in the pods. first returns the first reason of a pod; it is called for at most maxReasons.
func (w *Workloads) place(pods []corev1.Pod, nodes []corev1.Node, vclusters why.VClusters, s Selection, first func(*corev1.Pod) *explain.Reason) {
	pod := map[string]*corev1.Pod{}
	for i := range pods {
		pod[pods[i].Namespace+"/"+pods[i].Name] = &pods[i]
	}
	rows := slices.DeleteFunc(PodsByPlace(pods, nodes, vclusters), func(r Pod) bool {
		done := pod[r.Namespace+"/"+r.Pod].Status.Phase == corev1.PodSucceeded
		if done {
			w.Ended++
		}
		return done
	})
	rows = slices.DeleteFunc(rows, func(r Pod) bool {
		return !strings.Contains(r.Namespace+"/"+r.Pod, s.Filter) && (r.Origin == nil || !strings.Contains(r.Origin.String(), s.Filter)) && !strings.Contains(r.State, s.Filter) && !strings.Contains(r.Node, s.Filter)
	})
	rows, w.More = bound(rows[min(max(s.From, 0), len(rows)):], PageOfWorkloads)
	explained := 0
	for _, r := range rows {
		one := Workload{Pod: r}
		if r.Waits() && explained < maxReasons {
			explained++
			one.Why = first(pod[r.Namespace+"/"+r.Pod])
		}
		last := len(w.Places) - 1
		if last < 0 || w.Places[last].Place != r.Place || w.Places[last].Node != r.Node {
			w.Places = append(w.Places, Place{Place: r.Place, Node: r.Node})
			last++
		}
		w.Places[last].Pods = append(w.Places[last].Pods, one)
	}
}

// Waits reports whether a pod of this cluster, or of a virtual cluster of this device, does not do what it is for.
func (p *Pod) Waits() bool {
	return (p.Place != "tenant" || p.Origin != nil) && (p.Place == "waiting" || p.Ended || p.Ready < p.Containers || p.State == string(corev1.PodUnknown))
}

// reasons explains pods; the objects of a namespace are read once.
type reasons struct {
	ctx     context.Context
	client  kubernetes.Interface
	cluster explain.Facts
	of      map[string]explain.Facts // by namespace
}

// first is the first reason; nil if there is none, or the API server does not answer.
func (r *reasons) first(p *corev1.Pod) *explain.Reason {
	f, known := r.of[p.Namespace]
	if !known {
		f = r.cluster
		if why.NamespaceFacts(r.ctx, r.client, &f, p.Namespace) != nil {
			return nil
		}
		r.of[p.Namespace] = f
	}
	f.Pod = p
	if a := explain.Explain(f); len(a.Reasons) > 0 && a.Reasons[0].Code != explain.Fine {
		return &a.Reasons[0]
	}
	return nil
}
