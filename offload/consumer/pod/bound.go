package pod

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/consumer/homecache"
	"rivulet/offload/watch"
)

// bound are the pods of home that are bound to a target's virtual nodes.
type bound struct {
	all interface { // the pods of all targets
		GetIndexer() cache.Indexer
		HasSynced() bool
	}
	mu    sync.Mutex
	nodes map[string]bool
}

// byNode indexes the pods of home by their node.
const byNode = "node"

func indexNode(obj any) ([]string, error) {
	if p, ok := obj.(*corev1.Pod); ok {
		return []string{p.Spec.NodeName}, nil
	}
	return nil, nil
}

// allBound is the informer that all targets share: one watch of the pods that are bound to other nodes than home's own.
func allBound(home *Home) *homecache.Informer {
	return home.Cache.Informer(homecache.Key{Kind: "Pod"}, func() cache.SharedIndexInformer {
		selector := fields.AndSelectors(fields.OneTermNotEqualSelector("spec.nodeName", ""), fields.OneTermNotEqualSelector("spec.nodeName", home.Node))
		factory := informers.NewSharedInformerFactoryWithOptions(home.Client, 0, informers.WithTransform(watch.Unmanaged),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = selector.String() }))
		inf := factory.Core().V1().Pods().Informer()
		_ = inf.AddIndexers(cache.Indexers{byNode: indexNode, byReference: indexReferences}) // fails only on a stopped informer
		return inf
	})
}

func (b *bound) synced() bool { return b.all.HasSynced() }

// served are the target's nodes.
func (b *bound) served() (nodes []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for node := range b.nodes {
		nodes = append(nodes, node)
	}
	return nodes
}

func (b *bound) has(p *corev1.Pod) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.nodes[p.Spec.NodeName]
}

func (b *bound) list() []*corev1.Pod { return b.on(b.served()...) }

func (b *bound) on(nodes ...string) (out []*corev1.Pod) {
	for _, node := range nodes {
		objs, _ := b.all.GetIndexer().ByIndex(byNode, node)
		for _, obj := range objs {
			out = append(out, obj.(*corev1.Pod))
		}
	}
	return out
}

// get returns the pod of that name, nil without one.
func (b *bound) get(k types.NamespacedName) *corev1.Pod {
	obj, ok, _ := b.all.GetIndexer().GetByKey(k.String())
	if !ok || !b.has(obj.(*corev1.Pod)) {
		return nil
	}
	return obj.(*corev1.Pod)
}

// Serve adds the pods of another virtual node of the target. It serves them after the node is deleted as well, until
// they are gone. It may be called at any time, and repeatedly.
func (c *Controller) Serve(node string) {
	c.pods.mu.Lock()
	c.pods.nodes[node] = true
	c.pods.mu.Unlock()
	for _, p := range c.pods.on(node) { // others are seen later
		c.queue.Add(keyOf(p))
	}
}

// events handles changes of the target's pods among those of all targets.
func (b *bound) events(c *Controller) cache.ResourceEventHandler {
	seen := func(p *corev1.Pod) {
		if b.has(p) {
			c.queue.Add(keyOf(p))
		}
	}
	gone := func(p *corev1.Pod) {
		if b.has(p) {
			c.queue.Add(keyOf(p))
			c.unrefer(p, nil)
			c.forget(p)
			if !c.offloaded(p.Namespace) {
				c.Departed.Notify()
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { seen(obj.(*corev1.Pod)) },
		UpdateFunc: func(before, obj any) {
			was, is := before.(*corev1.Pod), obj.(*corev1.Pod)
			if was.UID != is.UID { // another one of the same name, perhaps of another target
				gone(was)
			} else if b.has(is) {
				c.unrefer(was, is)
			}
			seen(is)
		},
		DeleteFunc: func(obj any) {
			if p, ok := watch.Last(obj).(*corev1.Pod); ok {
				gone(p)
			}
		},
	}
}
