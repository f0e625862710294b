package networkpolicy

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/changes"
	"rivulet/fabric/ipam"
)

// Watcher caches an API server's policies and, while there are any, pods and namespaces: without policies it costs one
// idle watch. Its methods may be called concurrently, and before Run.
type Watcher struct {
	log *slog.Logger

	mu     sync.Mutex
	read   func() World // nil until everything was listed once
	last   World
	peers  []netip.Prefix // World.Peers
	stale  bool
	signal changes.Signal
}

// NewWatcher returns one without content until Run.
func NewWatcher(log *slog.Logger) *Watcher {
	return &Watcher{log: log, stale: true, peers: []netip.Prefix{ipam.Default}}
}

// World returns the cached world; false before everything was listed once. Without policies it has no pods. It is
// shared and must not be changed.
func (w *Watcher) World() (World, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.read == nil {
		return World{}, false
	}
	if w.stale {
		w.last, w.stale = w.read(), false
		w.last.Peers = w.peers
	}
	return w.last, true
}

// SetPeers sets the ranges of addresses of pods on peers; before that it is ipam.Default.
func (w *Watcher) SetPeers(peers []netip.Prefix) {
	w.mu.Lock()
	same := slices.Equal(w.peers, peers)
	w.peers = peers
	w.mu.Unlock()
	if !same {
		w.changed()
	}
}

// Changed returns a channel that gets a value after the result of World may have changed, and the function that ends
// the subscription.
func (w *Watcher) Changed() (<-chan struct{}, func()) { return w.signal.Changed() }

func (w *Watcher) changed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stale = true
	w.signal.Notify()
}

// serve replaces the source of World.
func (w *Watcher) serve(read func() World) {
	w.mu.Lock()
	w.read = read
	w.mu.Unlock()
	w.changed()
}

// Run watches the API server until ctx ends. It may be called again after that; the previous content is served until
// everything was listed again.
func (w *Watcher) Run(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trimmed))
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	poke := make(chan struct{}, 1)
	seen := func() {
		w.changed()
		changes.Poke(poke)
	}
	if err := follow(policies, seen); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), policies.HasSynced) {
		return nil
	}
	end := func() {} // of pods and namespaces
	defer func() { end() }()
	with := false
	for {
		if there := len(policies.GetStore().ListKeys()) > 0; there != with {
			with = there
			end()
			end = func() {}
			if !with {
				w.log.Debug("no network policies")
				w.serve(func() World { return World{} })
			} else {
				var err error
				if end, err = w.more(ctx, client, policies.GetStore()); err != nil {
					return err
				}
			}
		} else if !with {
			w.mu.Lock()
			first := w.read == nil
			w.mu.Unlock()
			if first {
				w.serve(func() World { return World{} })
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-poke:
		}
	}
}

// more watches pods and namespaces as well, until end is called.
func (w *Watcher) more(ctx context.Context, client kubernetes.Interface, policies cache.Store) (end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trimmed))
	pods, namespaces := factory.Core().V1().Pods().Informer(), factory.Core().V1().Namespaces().Informer()
	for _, i := range []cache.SharedIndexInformer{pods, namespaces} {
		if err := follow(i, w.changed); err != nil {
			cancel()
			return nil, err
		}
	}
	factory.Start(ctx.Done())
	end = func() { cancel(); factory.Shutdown() }
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, namespaces.HasSynced) {
		return end, nil
	}
	w.serve(func() World { return world(policies, pods.GetStore(), namespaces.GetStore()) })
	return end, nil
}

// follow calls changed for relevant changes: most updates of a pod are not.
func follow(i cache.SharedIndexInformer, changed func()) error {
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			if !same(before, after) {
				changed()
			}
		},
	})
	if err != nil {
		return fmt.Errorf("netpol: watch: %w", err)
	}
	return nil
}

func same(before, after any) bool {
	b, ok := before.(metav1.Object)
	a, okay := after.(metav1.Object)
	if !ok || !okay || a.GetUID() != b.GetUID() || !maps.Equal(a.GetLabels(), b.GetLabels()) ||
		(a.GetDeletionTimestamp() == nil) != (b.GetDeletionTimestamp() == nil) {
		return false
	}
	switch a := after.(type) {
	case *corev1.Pod:
		b := before.(*corev1.Pod)
		return finished(a) == finished(b) && equality.Semantic.DeepEqual(a.Status.PodIPs, b.Status.PodIPs) && equality.Semantic.DeepEqual(a.Spec, b.Spec)
	case *networkingv1.NetworkPolicy:
		b := before.(*networkingv1.NetworkPolicy)
		return equality.Semantic.DeepEqual(a.Spec, b.Spec)
	}
	return true
}

// trimmed keeps the parts of objects that policies use.
func trimmed(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Pod:
		out := &corev1.Pod{ObjectMeta: meta(o.ObjectMeta), Spec: corev1.PodSpec{HostNetwork: o.Spec.HostNetwork},
			Status: corev1.PodStatus{Phase: o.Status.Phase, PodIPs: o.Status.PodIPs}}
		var ports []corev1.ContainerPort
		for _, c := range slices.Concat(o.Spec.InitContainers, o.Spec.Containers) {
			for _, p := range c.Ports {
				if p.Name != "" {
					ports = append(ports, corev1.ContainerPort{Name: p.Name, Protocol: p.Protocol, ContainerPort: p.ContainerPort})
				}
			}
		}
		if ports != nil {
			out.Spec.Containers = []corev1.Container{{Ports: ports}}
		}
		return out, nil
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: meta(o.ObjectMeta)}, nil
	case *networkingv1.NetworkPolicy:
		return &networkingv1.NetworkPolicy{ObjectMeta: meta(o.ObjectMeta), Spec: o.Spec}, nil
	}
	return o, nil
}

func meta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		Labels: m.Labels, CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp}
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// world reads the caches. Of two pods with one address the one that is not being deleted comes first, then the younger.
func world(policies, pods, namespaces cache.Store) World {
	w := World{Namespaces: map[string]labels.Set{}}
	for _, o := range policies.List() {
		w.Policies = append(w.Policies, o.(*networkingv1.NetworkPolicy))
	}
	slices.SortFunc(w.Policies, func(a, b *networkingv1.NetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, o := range namespaces.List() {
		n := o.(*corev1.Namespace)
		w.Namespaces[n.Name] = n.Labels
	}
	var all []*corev1.Pod
	for _, o := range pods.List() {
		if p := o.(*corev1.Pod); !p.Spec.HostNetwork && !finished(p) {
			all = append(all, p)
		}
	}
	leaving := func(p *corev1.Pod) int {
		if p.DeletionTimestamp != nil {
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(leaving(a), leaving(b)), b.CreationTimestamp.Time.Truncate(time.Second).Compare(a.CreationTimestamp.Time.Truncate(time.Second)),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range all {
		one := Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Labels: p.Labels}
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is4() {
				one.Addr = a
				break
			}
		}
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				one.Ports = append(one.Ports, Port{Name: port.Name, Protocol: protocol(&port.Protocol), Number: uint16(port.ContainerPort)})
			}
		}
		w.Pods = append(w.Pods, one)
	}
	return w
}
