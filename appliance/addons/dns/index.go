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

	"rivulet/offload/homeapi"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/policy"
)

// index maps pod addresses to namespaces, twins to home namespaces, and their Services to the addresses at home. For
// each pod it has the name, the addresses and whether it was made for home's addresses.
type index struct {
	mu       sync.Mutex
	pods     map[netip.Addr]podName
	twins    map[string]homeName // by twin
	homes    map[homeName]string // twins by home
	made     map[podName]string  // pods from the API server with policy.HomeAddressesAnnotation
	services map[podName]homeaddr.Reflected
	mapped   map[string]bothWays // by origin; nil: to be computed again
	changed  chan struct{}       // closed and replaced at every change
	count    int64               // number of changes
	informed func() bool
	local    *local
}

type podName struct{ namespace, name string }

// homeName is a namespace of another cluster.
type homeName struct{ origin, namespace string }

func newIndex() *index {
	return &index{
		pods:  map[netip.Addr]podName{},
		twins: map[string]homeName{}, homes: map[homeName]string{},
		made: map[podName]string{}, services: map[podName]homeaddr.Reflected{},
		changed: make(chan struct{}),
	}
}

// tenant identifies a client's cluster: the zero value is this cluster.
type tenant struct {
	origin, namespace string
	homeAddresses     bool // made for home's Service addresses
	homePods          bool // and for home's pod addresses
}

// bothWays maps cluster IPs of Services: home to here, and here to home.
type bothWays struct{ here, home map[netip.Addr]netip.Addr }

// who returns the tenant with the address. A pod of another device may send a query before its address is published:
// who waits for that until ctx ends.
func (x *index) who(ctx context.Context, client netip.Addr) (tenant, bool) {
	for {
		pod, here := x.local.pod(client)
		x.mu.Lock()
		if !here {
			pod, here = x.pods[client]
		}
		origin, changed := x.twins[pod.namespace].origin, x.changed
		made, told := x.made[pod]
		x.mu.Unlock()
		if here && (told || origin == "") { // for a tenant it must be known what it was made for
			return tenant{origin, pod.namespace, made != "", made == policy.HomeAddressesOfPods}, true
		}
		select {
		case <-ctx.Done():
			return tenant{}, false
		default:
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// twinned reports whether there are twins.
func (x *index) twinned() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.twins) > 0
}

// twinOf returns the namespace that a name means for a tenant of the origin: the twin of its home namespace, or one of
// its twins by the name here.
func (x *index) twinOf(origin, namespace string) (string, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if twin, ok := x.homes[homeName{origin, namespace}]; ok {
		return twin, true
	}
	return namespace, namespace != "" && x.twins[namespace].origin == origin
}

// originOf returns the cluster whose twin a namespace is, and homeOf its name there; "" if it is none.
func (x *index) originOf(namespace string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.twins[namespace].origin
}

func (x *index) homeOf(namespace string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.twins[namespace].namespace
}

// setMade records a pod from the API server.
func (x *index) setMade(p podName, made string) {
	x.mu.Lock()
	was, told := x.made[p]
	x.mu.Unlock()
	if !told || was != made {
		x.change(func() { x.made[p] = made })
	}
}

func (x *index) setService(name podName, s homeaddr.Reflected) {
	x.change(func() {
		delete(x.services, name)
		x.mapped = nil
		if s.Home.IsValid() && s.Here.IsValid() {
			x.services[name] = s
		}
	})
}

// addresses are those of the origin's Services.
func (x *index) addresses(origin string) bothWays {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mapped == nil {
		of := map[string][]homeaddr.Reflected{}
		for _, s := range x.services {
			if origin := x.twins[s.Namespace].origin; origin != "" {
				of[origin] = append(of[origin], s)
			}
		}
		x.mapped = map[string]bothWays{}
		for origin, list := range of {
			b := bothWays{map[netip.Addr]netip.Addr{}, map[netip.Addr]netip.Addr{}}
			for at, here := range homeaddr.Map(list) {
				if at.Port == 0 { // node ports have no names
					b.here[at.Addr], b.home[here] = here, at.Addr
				}
			}
			for _, s := range list { // each twin has one, all with the same target
				if _, known := b.here[s.Home]; known && s.Name == homeapi.Service {
					b.home[s.Here] = s.Home
				}
			}
			x.mapped[origin] = b
		}
	}
	return x.mapped[origin]
}

// homeAddress returns the home address of the Service with an address here. It waits until ctx ends for a new Service.
func (x *index) homeAddress(ctx context.Context, origin string, here netip.Addr) (netip.Addr, bool) {
	for {
		x.mu.Lock()
		changed := x.changed
		x.mu.Unlock()
		if home, ok := x.addresses(origin).home[here]; ok {
			return home, true
		}
		select {
		case <-ctx.Done():
			return netip.Addr{}, false
		case <-changed:
		}
	}
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
			if x.pods[a] == p { // another pod may have the address by now
				delete(x.pods, a)
			}
		}
		for _, a := range now {
			x.pods[a] = p
		}
		if _, told := x.made[p]; !told && len(now) > 0 {
			x.made[p] = ""
		}
	})
}

func (x *index) setTwin(twin string, home homeName) {
	x.change(func() {
		x.mapped = nil
		if old, ok := x.twins[twin]; ok {
			delete(x.twins, twin)
			if x.homes[old] == twin {
				delete(x.homes, old)
			}
		}
		if home == (homeName{}) {
			return
		}
		x.twins[twin], x.homes[home] = home, twin
	})
}

// changes counts them.
func (x *index) changes() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.count
}

// synced reports whether the informers have synced. They hold their own locks while they call handlers that take x.mu,
// so x.mu is not held here.
func (x *index) synced() bool {
	x.mu.Lock()
	informed := x.informed
	x.mu.Unlock()
	return informed != nil && informed()
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
	_, services := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(
			cache.NewFilteredListWatchFromClient(core.RESTClient(), "services", "", func(o *metav1.ListOptions) {
				o.LabelSelector = policy.ReflectedLabel
			}), client),
		ObjectType: &corev1.Service{},
		Transform:  trimService,
		Handler:    serviceHandler{x},
	})
	x.mu.Lock()
	x.informed = func() bool { return namespaces.HasSynced() && pods.HasSynced() && services.HasSynced() }
	x.mu.Unlock()
	var all sync.WaitGroup
	all.Go(func() { services.RunWithContext(ctx) })
	all.Go(func() { namespaces.RunWithContext(ctx) })
	all.Go(func() { pods.RunWithContext(ctx) })
	all.Wait()
}

// trimmed is the stored part of a Pod or a Namespace.
type trimmed struct {
	metav1.ObjectMeta
	addrs   []netip.Addr
	home    homeName
	made    string             // of a Pod
	service homeaddr.Reflected // of a Service
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
	t.made = p.Annotations[policy.HomeAddressesAnnotation]
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

func trimService(o any) (any, error) {
	s, ok := o.(*corev1.Service)
	if !ok {
		return o, nil
	}
	t := trim(s)
	t.service = homeaddr.ReflectedOf(s)
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
	h.setMade(podName{t.Namespace, t.Name}, t.made)
	h.setPod(podName{t.Namespace, t.Name}, nil, t.addrs)
}
func (h podHandler) OnDelete(o any) {
	t := toTrimmed(o)
	name := podName{t.Namespace, t.Name}
	h.change(func() { delete(h.made, name) })
	h.setPod(name, t.addrs, nil)
}
func (h podHandler) OnUpdate(old, now any) {
	o, n := toTrimmed(old), toTrimmed(now)
	h.setMade(podName{n.Namespace, n.Name}, n.made)
	h.setPod(podName{n.Namespace, n.Name}, o.addrs, n.addrs)
}

type namespaceHandler struct{ *index }

func (h namespaceHandler) OnAdd(o any, _ bool) { t := toTrimmed(o); h.setTwin(t.Name, t.home) }
func (h namespaceHandler) OnUpdate(_, now any) { t := toTrimmed(now); h.setTwin(t.Name, t.home) }
func (h namespaceHandler) OnDelete(o any)      { h.setTwin(toTrimmed(o).Name, homeName{}) }

type serviceHandler struct{ *index }

func (h serviceHandler) OnAdd(o any, _ bool) { h.set(toTrimmed(o)) }
func (h serviceHandler) OnUpdate(_, now any) { h.set(toTrimmed(now)) }
func (h serviceHandler) OnDelete(o any) {
	t := toTrimmed(o)
	h.setService(podName{t.Namespace, t.Name}, homeaddr.Reflected{})
}
func (h serviceHandler) set(t *trimmed) { h.setService(podName{t.Namespace, t.Name}, t.service) }
