package pod

import (
	"context"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/watch"
)

// bound are the pods of home that are bound to a target's virtual nodes: one watch per node, since no field selector
// matches several nodes.
type bound struct {
	mu     sync.Mutex
	nodes  map[string]cache.SharedIndexInformer
	life   context.Context // of run; nil before
	active sync.WaitGroup
}

// add starts watching the pods of another node.
func (b *bound) add(node string, make func() cache.SharedIndexInformer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nodes[node] != nil {
		return
	}
	if b.nodes == nil {
		b.nodes = map[string]cache.SharedIndexInformer{}
	}
	b.nodes[node] = make()
	b.start(b.nodes[node])
}

// start: mu is held.
func (b *bound) start(inf cache.SharedIndexInformer) {
	if ctx := b.life; ctx != nil && ctx.Err() == nil {
		b.active.Go(func() { inf.RunWithContext(ctx) })
	}
}

// run watches until ctx ends.
func (b *bound) run(ctx context.Context) {
	b.mu.Lock()
	b.life = ctx
	for _, inf := range b.nodes {
		b.start(inf)
	}
	b.mu.Unlock()
	<-ctx.Done()
	b.mu.Lock() // a later add sees that run has ended
	defer b.mu.Unlock()
	b.active.Wait()
}

func (b *bound) synced() bool {
	return !slices.ContainsFunc(b.informers(), func(inf cache.SharedIndexInformer) bool { return !inf.HasSynced() })
}

func (b *bound) informers() []cache.SharedIndexInformer {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.nodes))
}

func (b *bound) list() []*corev1.Pod {
	var out []*corev1.Pod
	for _, inf := range b.informers() {
		for _, obj := range inf.GetStore().List() {
			out = append(out, obj.(*corev1.Pod))
		}
	}
	return out
}

// get returns the pod of that name, nil without one. If the caches have two, because a deletion has not arrived yet, it
// is the newer one.
func (b *bound) get(k types.NamespacedName) *corev1.Pod {
	var found *corev1.Pod
	for _, inf := range b.informers() {
		obj, ok, _ := inf.GetStore().GetByKey(k.String())
		if !ok {
			continue
		}
		if p := obj.(*corev1.Pod); found == nil || found.CreationTimestamp.Before(&p.CreationTimestamp) {
			found = p
		}
	}
	return found
}

// Serve adds the pods of another virtual node of the target. It serves them after the node is deleted as well, until
// they are gone. It may be called at any time, and repeatedly.
func (c *Controller) Serve(node string) {
	c.pods.add(node, func() cache.SharedIndexInformer {
		factory := informers.NewSharedInformerFactoryWithOptions(c.cfg.Home, 0, informers.WithTransform(watch.Unmanaged),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) {
				o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
			}))
		inf := factory.Core().V1().Pods().Informer()
		enqueue := func(obj any) {
			if p, ok := obj.(*corev1.Pod); ok {
				c.queue.Add(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
			}
		}
		// These fail only on a stopped informer.
		_ = inf.AddIndexers(cache.Indexers{byReference: indexReferences})
		_, _ = inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: enqueue,
			UpdateFunc: func(was, obj any) {
				enqueue(obj)
				c.unrefer(was, obj)
			},
			DeleteFunc: func(obj any) {
				if p, ok := watch.Last(obj).(*corev1.Pod); ok {
					enqueue(p)
					c.unrefer(p, nil)
					c.forget(p)
					c.cfg.Departed(p.Namespace)
				}
			},
		})
		return inf
	})
}
