package k3s

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
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

	"rivulet/appliance/engine/controlplane/pods"
)

// neighbours makes evaluators of rules between pods.
type neighbours struct{ client kubernetes.Interface }

// evaluator has the scheduler's own plug-ins for rules between pods: required affinity, anti-affinity, and topology spread.
type evaluator struct {
	plugins []fwk.Plugin
	nodes   []fwk.NodeInfo
}

// Beside returns an evaluator with a snapshot of the binder's pods and nodes.
func (n neighbours) Beside(ctx context.Context, namespaces []corev1.Namespace, others []*corev1.Pod, nodes []*corev1.Node) (pods.Evaluator, error) {
	factory := informers.NewSharedInformerFactory(n.client, 0) // never started: it only carries the list
	known := factory.Core().V1().Namespaces().Informer().GetIndexer()
	for i := range namespaces {
		if err := known.Add(&namespaces[i]); err != nil {
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
	gates := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	affinity, err := interpodaffinity.New(ctx, &config.InterPodAffinityArgs{}, h, gates)
	if err != nil {
		return nil, err
	}
	spread, err := podtopologyspread.New(ctx, &config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting}, h, gates)
	if err != nil {
		return nil, err
	}
	return evaluator{[]fwk.Plugin{affinity, spread}, all}, nil
}

// Refuse returns, for each node on which a pod may not run beside the others, why.
func (e evaluator) Refuse(ctx context.Context, p *corev1.Pod) (map[string]string, error) {
	out := map[string]string{}
	for _, plugin := range e.plugins {
		state := framework.NewCycleState()
		_, status := plugin.(fwk.PreFilterPlugin).PreFilter(ctx, state, p, e.nodes)
		if status.IsSkip() {
			continue
		}
		for _, node := range e.nodes {
			name := node.Node().Name
			if status.IsSuccess() {
				if said := plugin.(fwk.FilterPlugin).Filter(ctx, state, p, node); !said.IsSuccess() && out[name] == "" {
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
