package k3s

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/podtopologyspread"
)

// neighbours are the scheduler's own plug-ins for rules between pods: required affinity, anti-affinity, and topology
// spread. They are made for each question, from a snapshot of the binder's pods and nodes, and keep nothing.
type neighbours struct{ client kubernetes.Interface }

// Refuse returns, for each node on which a pod may not run beside the others, why. others have their nodes in
// spec.nodeName.
func (n neighbours) Refuse(ctx context.Context, p *corev1.Pod, others []*corev1.Pod, nodes []*corev1.Node) (map[string]string, error) {
	namespaces, err := n.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("the namespaces for rules between pods: %w", err)
	}
	factory := informers.NewSharedInformerFactory(n.client, 0) // never started: it only carries the list
	known := factory.Core().V1().Namespaces().Informer().GetIndexer()
	for i := range namespaces.Items {
		if err := known.Add(&namespaces.Items[i]); err != nil {
			return nil, err
		}
	}
	// The plug-ins expect that the node of each pod exists.
	others = slices.DeleteFunc(slices.Clone(others), func(q *corev1.Pod) bool {
		return !slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return n.Name == q.Spec.NodeName })
	})
	h := handle{snapshot: schedulercache.NewSnapshot(others, nodes), factory: factory}
	all, err := h.snapshot.List()
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	gates := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	for _, plugin := range []struct {
		make func(context.Context, runtime.Object, fwk.Handle, feature.Features) (fwk.Plugin, error)
		args runtime.Object
	}{
		{interpodaffinity.New, &config.InterPodAffinityArgs{}},
		{podtopologyspread.New, &config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting}},
	} {
		made, err := plugin.make(ctx, plugin.args, h, gates)
		if err != nil {
			return nil, err
		}
		state := framework.NewCycleState()
		_, status := made.(fwk.PreFilterPlugin).PreFilter(ctx, state, p, all)
		if status.IsSkip() {
			continue
		}
		for _, node := range all {
			name := node.Node().Name
			if status.IsSuccess() {
				if said := made.(fwk.FilterPlugin).Filter(ctx, state, p, node); !said.IsSuccess() && out[name] == "" {
					out[name] = inWords(said)
				}
			} else if out[name] == "" {
				out[name] = inWords(status)
			}
		}
	}
	return out, nil
}

// inWords are the reasons of a status, of one node.
func inWords(s *fwk.Status) string {
	reasons := slices.Clone(s.Reasons())
	for i, r := range reasons {
		reasons[i] = strings.Replace(r, "node(s) didn't", "it does not", 1)
	}
	return strings.Join(reasons, ", ")
}

// handle is what these plug-ins use of a scheduler.
type handle struct {
	fwk.Handle
	snapshot *schedulercache.Snapshot
	factory  informers.SharedInformerFactory
}

func (h handle) SnapshotSharedLister() fwk.SharedLister                 { return h.snapshot }
func (h handle) SharedInformerFactory() informers.SharedInformerFactory { return h.factory }
func (handle) Parallelizer() fwk.Parallelizer                           { return serial{} }

// serial does one piece after the other: the scheduler's own needs its metrics, and there are few nodes.
type serial struct{}

func (serial) Until(_ context.Context, pieces int, do workqueue.DoWorkPieceFunc, _ string) {
	for i := range pieces {
		do(i)
	}
}
