package offer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// Settle is how long changes are collected before a signal.
const Settle = 250 * time.Millisecond

// Watcher caches nodes and pods of this cluster, reduced to what Measure uses.
type Watcher struct {
	// HostOf is Room.HostOf; it has to be set before Run.
	HostOf func(peer.ID) peer.ID

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

// measurement is a Room that is valid until the next change.
type measurement struct {
	room   Room
	shares Shares
	turn   uint64
}

// NewWatcher returns a Watcher without content until Run.
func NewWatcher(client kubernetes.Interface) *Watcher {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim))
	return &Watcher{
		factory: factory, nodes: factory.Core().V1().Nodes().Lister(), pods: factory.Core().V1().Pods().Lister(),
		tally: NewTally(), dirty: make(chan struct{}, 1), synced: make(chan struct{}),
	}
}

// Run watches the API server until ctx ends; it may be called once.
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
	if !cache.WaitForCacheSync(ctx.Done(), counted.HasSynced) { // the pods are loaded and counted
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

// Pods are all pods of this cluster: of tenants the parts that Measure and package replacement use. It runs with Run.
func (w *Watcher) Pods() cache.SharedIndexInformer { return w.factory.Core().V1().Pods().Informer() }

// Addresses are those of tenants' pods on these nodes, by consumer and by node, sorted. A node's pods count by their
// statuses, which its kubelet writes, and only within its own prefix.
func (w *Watcher) Addresses(nodes map[string]netip.Prefix) map[peer.ID]map[string][]netip.Addr {
	out := map[peer.ID]map[string][]netip.Addr{}
	all, _ := w.pods.List(labels.Everything()) // a cache cannot fail
	for _, p := range all {
		within, ok := nodes[p.Spec.NodeName]
		origin, tenant := p.Labels[policy.OriginLabel]
		at, err := netip.ParseAddr(p.Status.PodIP)
		if !ok || !tenant || err != nil || !within.Contains(at) || !counts(p) {
			continue
		}
		if out[peer.ID(origin)] == nil {
			out[peer.ID(origin)] = map[string][]netip.Addr{}
		}
		out[peer.ID(origin)][p.Spec.NodeName] = append(out[peer.ID(origin)][p.Spec.NodeName], at)
	}
	for _, byNode := range out {
		for _, addrs := range byNode {
			slices.SortFunc(addrs, netip.Addr.Compare)
		}
	}
	return out
}

// Synced is closed when nodes and pods are loaded.
func (w *Watcher) Synced() <-chan struct{} { return w.synced }

// Room returns what can be lent now, and false before that is loaded. It is shared by all callers between two changes
// (the stream of each consumer and the quotas) and must not be changed.
func (w *Watcher) Room(shares Shares) (Room, bool) {
	select {
	case <-w.synced:
	default:
		return Room{Offer: Offer{Reason: "the provider has just started and does not know its own room yet"}}, false
	}
	w.measured.Lock()
	defer w.measured.Unlock()
	turn := w.turns.Load() // first: a change in the meantime causes another measurement
	if turn == 0 || w.last.turn != turn || w.last.shares != shares {
		nodes, _ := w.nodes.List(labels.Everything()) // a cache cannot fail
		var members map[peer.ID]Member
		if m := w.members.Load(); m != nil {
			members = *m
		}
		w.last = measurement{w.tally.Measure(nodes, shares, members), shares, turn}
		w.last.room.HostOf = w.HostOf
	}
	return w.last.room, true
}

// Offer returns what is lent to the consumer now, besides the others with a place here.
func (w *Watcher) Offer(consumer peer.ID, known []peer.ID, shares Shares) Offer {
	room, _ := w.Room(shares)
	return room.For(consumer, known)
}

// PodsOf lists the consumer's unfinished pods. They must not be changed.
func (w *Watcher) PodsOf(consumer peer.ID) []*corev1.Pod {
	pods, _ := w.pods.List(labels.SelectorFromSet(labels.Set{policy.OriginLabel: string(consumer)}))
	return slices.DeleteFunc(pods, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

// PodsState is the state of a consumer's unfinished pods. Two that are equal have the same pods, addresses and readiness.
type PodsState struct {
	// Pods is a digest of their UIDs, phases, addresses and whether they are deleted; Ready of the UIDs of those that are
	// ready.
	Pods, Ready string
}

// StateOf returns the state of the consumer's pods, and false before they are loaded.
func (w *Watcher) StateOf(consumer peer.ID) (PodsState, bool) {
	select {
	case <-w.synced:
	default:
		return PodsState{}, false
	}
	var pods, serving []string
	for _, p := range w.PodsOf(consumer) {
		pods = append(pods, fmt.Sprintln(p.UID, p.Status.Phase, p.Status.PodIP, p.DeletionTimestamp != nil))
		if podReady(p) {
			serving = append(serving, fmt.Sprintln(p.UID))
		}
	}
	return PodsState{digest(pods), digest(serving)}, true
}

// Follow calls f, which must not block, after a change of a consumer's PodsState. Call it before Run, or soon after.
func (w *Watcher) Follow(f func(id peer.ID)) {
	told := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if p, ok := obj.(*corev1.Pod); ok && p.Labels[policy.OriginLabel] != "" {
			f(peer.ID(p.Labels[policy.OriginLabel]))
		}
	}
	// It fails only on a stopped informer.
	_, _ = w.Pods().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: told,
		UpdateFunc: func(before, now any) {
			was, p := before.(*corev1.Pod), now.(*corev1.Pod)
			if was.UID != p.UID || (was.DeletionTimestamp == nil) != (p.DeletionTimestamp == nil) || !equality.Semantic.DeepEqual(was.Status, p.Status) {
				told(p)
			}
		},
		DeleteFunc: told,
	})
}

func digest(lines []string) string {
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(sum[:12])
}

// isReady are the conditions of all ready pods, in place of their own.
var isReady = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}

func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// Tenants counts the unfinished pods of each consumer.
func (w *Watcher) Tenants() map[peer.ID]int {
	counts := map[peer.ID]int{}
	pods, _ := w.pods.List(labels.Everything())
	for _, p := range pods {
		if origin, ok := p.Labels[policy.OriginLabel]; ok && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			counts[peer.ID(origin)]++
		}
	}
	return counts
}

// Changed returns a channel that gets a value after nodes or pods changed, all changes of one Settle as one, and the
// function that ends the subscription.
func (w *Watcher) Changed() (<-chan struct{}, func()) { return w.signal.Changed() }

// Host sets which consumers are virtual clusters of this device; it replaces the previous map. The caller must not
// change members afterwards.
func (w *Watcher) Host(members map[peer.ID]Member) {
	w.members.Store(&members)
	w.turns.Add(1)
	w.signal.Notify()
}

// Poke gives a signal now, after a change of the Shares.
func (w *Watcher) Poke() { w.signal.Notify() }

// trim keeps what Measure uses: on a small board the caches of every pod and node are most of the cost of an idle
// provider. The requests of a pod are summed up here, once per change and not in each measurement, and stored as those
// of one container.
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Node:
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Labels: o.Labels, DeletionTimestamp: o.DeletionTimestamp},
			Spec:       corev1.NodeSpec{Unschedulable: o.Spec.Unschedulable, Taints: o.Spec.Taints},
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
			p.Spec.NodeSelector = o.Spec.NodeSelector // the platform that it waits for
			p.Labels = map[string]string{policy.OriginLabel: origin}
			p.DeletionGracePeriodSeconds = o.DeletionGracePeriodSeconds
			p.Spec.Volumes = claims(o) // for users of Pods
			if !o.Spec.HostNetwork {
				p.Status.PodIP = o.Status.PodIP // for Addresses
			}
			if podReady(o) { // for StateOf
				p.Status.Conditions = isReady
			}
			if kept, ok := o.Labels[policy.KeptLabel]; ok { // for users of Pods
				p.Labels[policy.KeptLabel] = kept
				p.Finalizers = o.Finalizers
			}
		}
		return p, nil
	}
	return o, nil
}

// claims are the volumes of a pod that are claims, by the names of the claims alone.
func claims(p *corev1.Pod) (out []corev1.Volume) {
	for i := range p.Spec.Volumes {
		v, name := &p.Spec.Volumes[i], ""
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(p, v)
		default:
			continue
		}
		out = append(out, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
	return out
}
