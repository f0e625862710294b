package offer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// Settle is how long changes are gathered before a signal is given.
const Settle = 250 * time.Millisecond

// Watcher follows nodes and pods of this cluster. It keeps of them only what
// Measure reads.
type Watcher struct {
	factory informers.SharedInformerFactory
	nodes   corelisters.NodeLister
	pods    corelisters.PodLister
	tally   *Tally // of pods
	dirty   chan struct{}
	synced  chan struct{}
	signal  changes.Signal

	turns    atomic.Uint64 // counts changes of nodes, pods and members
	members  atomic.Pointer[map[peer.ID]Member]
	measured sync.Mutex
	last     measurement
}

// measurement is a Room that holds until there is another change.
type measurement struct {
	room   Room
	shares Shares
	turn   uint64
}

// NewWatcher returns a Watcher that knows nothing until Run.
func NewWatcher(client kubernetes.Interface) *Watcher {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim))
	return &Watcher{
		factory: factory, nodes: factory.Core().V1().Nodes().Lister(), pods: factory.Core().V1().Pods().Lister(),
		tally: NewTally(), dirty: make(chan struct{}, 1), synced: make(chan struct{}),
	}
}

// Run follows the API server until ctx ends; it may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	mark := func() {
		w.turns.Add(1)
		changes.Poke(w.dirty)
	}
	_, err := w.factory.Core().V1().Nodes().Informer().AddEventHandler(watch.Changes(mark))
	var counted cache.ResourceEventHandlerRegistration
	if err == nil {
		counted, err = w.factory.Core().V1().Pods().Informer().AddEventHandler(w.tally.handler(mark))
	}
	if err != nil {
		return fmt.Errorf("offer: watch: %w", err)
	}
	w.factory.Start(ctx.Done())
	defer w.factory.Shutdown()
	for _, ok := range w.factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return nil
		}
	}
	if !cache.WaitForCacheSync(ctx.Done(), counted.HasSynced) { // the pods are known, and counted, too
		return nil
	}
	close(w.synced)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.dirty:
		}
		w.signal.Notify()
		if !changes.Wait(ctx, Settle) {
			return nil
		}
	}
}

// Pods are all pods of this cluster: of guests what Measure reads, and what package replacement
// goes by. It runs with Run.
func (w *Watcher) Pods() cache.SharedIndexInformer { return w.factory.Core().V1().Pods().Informer() }

// Synced is closed when nodes and pods are known.
func (w *Watcher) Synced() <-chan struct{} { return w.synced }

// Room returns what there is to lend now, and false before that is known. It is not to be
// changed: all who ask between two changes, the stream of each consumer and the quotas,
// get the same.
func (w *Watcher) Room(shares Shares) (Room, bool) {
	select {
	case <-w.synced:
	default:
		return Room{Offer: Offer{Reason: "the provider has just started and does not know its own room yet"}}, false
	}
	w.measured.Lock()
	defer w.measured.Unlock()
	turn := w.turns.Load() // before the look: a change during it is looked at again
	if turn == 0 || w.last.turn != turn || w.last.shares != shares {
		nodes, _ := w.nodes.List(labels.Everything()) // a cache cannot fail
		var members map[peer.ID]Member
		if m := w.members.Load(); m != nil {
			members = *m
		}
		w.last = measurement{w.tally.Measure(nodes, shares, members), shares, turn}
	}
	return w.last.room, true
}

// Offer returns what is lent to the consumer now, beside the others that have a
// place here.
func (w *Watcher) Offer(consumer peer.ID, known []peer.ID, shares Shares) Offer {
	room, _ := w.Room(shares)
	return room.For(consumer, known)
}

// PodsOf lists the consumer's pods that have not finished. They are not to be changed.
func (w *Watcher) PodsOf(consumer peer.ID) []*corev1.Pod {
	pods, _ := w.pods.List(labels.SelectorFromSet(labels.Set{policy.OriginLabel: string(consumer)}))
	return slices.DeleteFunc(pods, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

// Guests counts the pods of each consumer that have not finished.
func (w *Watcher) Guests() map[peer.ID]int {
	counts := map[peer.ID]int{}
	pods, _ := w.pods.List(labels.Everything())
	for _, p := range pods {
		if origin, ok := p.Labels[policy.OriginLabel]; ok && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			counts[peer.ID(origin)]++
		}
	}
	return counts
}

// Changed returns a channel that gets a value after nodes or pods changed, all
// changes of one Settle as one, and the function that ends the subscription.
func (w *Watcher) Changed() (<-chan struct{}, func()) { return w.signal.Changed() }

// Host says which consumers are virtual clusters of this device; it replaces what was said before. members is not to be
// changed.
func (w *Watcher) Host(members map[peer.ID]Member) {
	w.members.Store(&members)
	w.turns.Add(1)
	w.signal.Notify()
}

// Poke gives a signal now, for who knows that the Shares are others.
func (w *Watcher) Poke() { w.signal.Notify() }

// trim keeps what Measure reads: on a small board the caches of every pod and
// node are most of what an idle provider costs. What a pod asks for is summed up here,
// once for each change of it, and not in each look at all pods: it then looks as if one
// container asked for it.
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Node:
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Labels: o.Labels, DeletionTimestamp: o.DeletionTimestamp},
			Spec:       corev1.NodeSpec{Unschedulable: o.Spec.Unschedulable},
			Status:     corev1.NodeStatus{Allocatable: o.Status.Allocatable, Conditions: o.Status.Conditions, NodeInfo: o.Status.NodeInfo},
		}, nil
	case *corev1.Pod:
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, UID: o.UID, ResourceVersion: o.ResourceVersion,
				CreationTimestamp: o.CreationTimestamp, DeletionTimestamp: o.DeletionTimestamp},
			Spec:   corev1.PodSpec{NodeName: o.Spec.NodeName, Containers: []corev1.Container{{Name: summedUp, Resources: corev1.ResourceRequirements{Requests: requested(o)}}}},
			Status: corev1.PodStatus{Phase: o.Status.Phase},
		}
		if origin, ok := o.Labels[policy.OriginLabel]; ok {
			p.Spec.NodeSelector = o.Spec.NodeSelector // for which platform it waits
			p.Labels = map[string]string{policy.OriginLabel: origin}
			p.DeletionGracePeriodSeconds = o.DeletionGracePeriodSeconds
			if kept, ok := o.Labels[policy.KeptLabel]; ok { // what Pods is asked for
				p.Labels[policy.KeptLabel] = kept
				p.Finalizers = o.Finalizers
			}
		}
		return p, nil
	}
	return o, nil
}
