package dns

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/policy"
)

// index knows which namespace a pod address belongs to and which namespaces are
// twins of which home namespaces. It holds of each pod its name and addresses.
type index struct {
	mu       sync.Mutex
	pods     map[netip.Addr]podName
	twins    map[string]homeName // by twin
	homes    map[homeName]string // twins by home
	named    map[string]int      // how many twins a home namespace has, of all origins
	changed  chan struct{}       // closed, and replaced, with every change
	count    int64               // of changes
	informed func() bool
}

type podName struct{ namespace, name string }

// homeName is a namespace of another cluster.
type homeName struct{ origin, namespace string }

func newIndex() *index {
	return &index{
		pods:  map[netip.Addr]podName{},
		twins: map[string]homeName{}, homes: map[homeName]string{}, named: map[string]int{},
		changed: make(chan struct{}),
	}
}

// twinFor returns the namespace in which names of the home namespace live for a
// client, false if they have no other meaning for it than for everyone. A pod's
// first queries come before its address is published: until ctx ends it waits
// to learn whose the address is, if that can make a difference.
func (x *index) twinFor(ctx context.Context, client netip.Addr, home string) (twin string, ok bool) {
	for {
		x.mu.Lock()
		pod, known := x.pods[client]
		at := x.twins[pod.namespace]
		twin, ok := x.homes[homeName{at.origin, home}]
		relevant, changed := x.named[home] > 0, x.changed
		x.mu.Unlock()
		if known || !relevant {
			return twin, known && ok
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", false
		}
	}
}

// homeOf returns the twin namespace that the client lives in and its home, if it does.
func (x *index) homeOf(client netip.Addr) (twin, home string, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	pod, known := x.pods[client]
	at, ok := x.twins[pod.namespace]
	return pod.namespace, at.namespace, known && ok
}

func (x *index) change(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f()
	x.count++
	close(x.changed)
	x.changed = make(chan struct{})
}

func (x *index) setPod(p podName, old, now []netip.Addr) {
	x.change(func() {
		for _, a := range old {
			if x.pods[a] == p { // the address may be another pod's by now
				delete(x.pods, a)
			}
		}
		for _, a := range now {
			x.pods[a] = p
		}
	})
}

func (x *index) setTwin(twin string, home homeName) {
	x.change(func() {
		if old, ok := x.twins[twin]; ok {
			delete(x.twins, twin)
			if x.homes[old] == twin {
				delete(x.homes, old)
			}
			if x.named[old.namespace]--; x.named[old.namespace] == 0 {
				delete(x.named, old.namespace)
			}
		}
		if home == (homeName{}) {
			return
		}
		x.twins[twin], x.homes[home] = home, twin
		x.named[home.namespace]++
	})
}

// changes counts them.
func (x *index) changes() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.count
}

func (x *index) synced() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.informed != nil && x.informed()
}

// run follows the API server until ctx ends.
func (x *index) run(ctx context.Context, client kubernetes.Interface) {
	core := client.CoreV1()
	_, namespaces := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(
			cache.NewFilteredListWatchFromClient(core.RESTClient(), "namespaces", "", func(o *metav1.ListOptions) {
				o.LabelSelector = policy.OriginLabel
			}), client),
		ObjectType: &corev1.Namespace{},
		Transform:  trimNamespace,
		Handler:    namespaceHandler{x},
	})
	_, pods := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(
			cache.NewListWatchFromClient(core.RESTClient(), "pods", "", fields.Everything()), client),
		ObjectType: &corev1.Pod{},
		Transform:  trimPod,
		Handler:    podHandler{x},
	})
	x.mu.Lock()
	x.informed = func() bool { return namespaces.HasSynced() && pods.HasSynced() }
	x.mu.Unlock()
	var all sync.WaitGroup
	all.Go(func() { namespaces.RunWithContext(ctx) })
	all.Go(func() { pods.RunWithContext(ctx) })
	all.Wait()
}

// trimmed is what is kept of a Pod or a Namespace.
type trimmed struct {
	metav1.ObjectMeta
	addrs []netip.Addr
	home  homeName
}

func trim(o metav1.Object) *trimmed {
	return &trimmed{ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}}
}

// trimPod keeps the addresses that are the pod's own and still in use.
func trimPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil // trimmed already, or a tombstone
	}
	t := trim(p)
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return t, nil
	}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			t.addrs = append(t.addrs, a)
		}
	}
	return t, nil
}

func trimNamespace(o any) (any, error) {
	n, ok := o.(*corev1.Namespace)
	if !ok {
		return o, nil
	}
	t := trim(n)
	if origin, home := n.Labels[policy.OriginLabel], n.Annotations[policy.HomeNamespaceAnnotation]; origin != "" && home != "" {
		t.home = homeName{origin, home}
	}
	return t, nil
}

func toTrimmed(o any) *trimmed {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	t, ok := o.(*trimmed)
	if !ok {
		panic(fmt.Sprintf("dns: informer holds a %T", o))
	}
	return t
}

type podHandler struct{ *index }

func (h podHandler) OnAdd(o any, _ bool) {
	t := toTrimmed(o)
	h.setPod(podName{t.Namespace, t.Name}, nil, t.addrs)
}
func (h podHandler) OnDelete(o any) {
	t := toTrimmed(o)
	h.setPod(podName{t.Namespace, t.Name}, t.addrs, nil)
}
func (h podHandler) OnUpdate(old, now any) {
	o, n := toTrimmed(old), toTrimmed(now)
	h.setPod(podName{n.Namespace, n.Name}, o.addrs, n.addrs)
}

type namespaceHandler struct{ *index }

func (h namespaceHandler) OnAdd(o any, _ bool) { t := toTrimmed(o); h.setTwin(t.Name, t.home) }
func (h namespaceHandler) OnUpdate(_, now any) { t := toTrimmed(now); h.setTwin(t.Name, t.home) }
func (h namespaceHandler) OnDelete(o any)      { h.setTwin(toTrimmed(o).Name, homeName{}) }
