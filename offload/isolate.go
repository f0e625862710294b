package offload

import (
	"context"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/peer"
	"rivulet/offload/isolation"
	"rivulet/offload/policy"
)

// Isolation is what the isolation of other clusters' pods needs of this device.
type Isolation struct {
	// Results is the folder of CNI results, DNS the cluster IP of cluster DNS.
	Results string
	DNS     netip.Addr
	// Networks are those of the device.
	Networks func() []netip.Prefix
}

// isolate holds the pods of other clusters that run here to what is theirs.
func (o *Offload) isolate(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	// Endpoints that consumers have told of: reflected ones, of which only those on other
	// peers count.
	factory := informers.NewSharedInformerFactoryWithOptions(o.home, 0,
		informers.WithTransform(func(obj any) (any, error) {
			if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
				s.ManagedFields, s.Annotations, s.Ports = nil, nil, nil
			}
			return obj, nil
		}),
		informers.WithTweakListOptions(func(l *metav1.ListOptions) { l.LabelSelector = policy.ReflectedLabel }))
	sliceInformer := factory.Discovery().V1().EndpointSlices()
	if _, err := sliceInformer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke() }, UpdateFunc: func(any, any) { poke() }, DeleteFunc: func(any) { poke() }}); err != nil {
		return err
	}
	// Ingress classes that are lent: their controllers reach guests.
	lent := informers.NewSharedInformerFactoryWithOptions(o.home, 0, informers.WithTweakListOptions(func(l *metav1.ListOptions) { l.LabelSelector = policy.LentLabel }))
	classes := lent.Networking().V1().IngressClasses()
	if _, err := classes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke() }, UpdateFunc: func(any, any) { poke() }, DeleteFunc: func(any) { poke() }}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	lent.Start(ctx.Done())
	defer lent.Shutdown()
	// The tables of an earlier run stay until it is known what they should be.
	if !o.tenancy.WaitTwins(ctx) || !cache.WaitForCacheSync(ctx.Done(), sliceInformer.Informer().HasSynced, classes.Informer().HasSynced) {
		return ctx.Err()
	}
	links, stop := o.cfg.Peers.Changed()
	defer stop()
	twins, unsubscribe := o.tenancy.TwinsChanged()
	defer unsubscribe()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-links:
			case <-twins:
			}
			poke()
		}
	}()
	return isolation.Run(ctx, isolation.Config{
		Results: o.cfg.Isolation.Results, DNS: o.cfg.Isolation.DNS, Networks: o.cfg.Isolation.Networks,
		Twins: o.tenancy.Twins, Links: o.cfg.Peers.Links, Changed: changed,
		Endpoints: func() map[peer.ID][]netip.Addr { return endpoints(sliceInformer.Lister(), o.tenancy.Twins()) },
		Doors: func() (namespaces []string) {
			all, _ := classes.Lister().List(labels.Everything()) // a cache cannot fail
			for _, c := range all {
				namespaces = append(namespaces, c.Labels[policy.LentLabel])
			}
			return namespaces
		},
		Report: func(err error) { o.problem("isolation of guests", err) },
		Log:    o.cfg.Log.With("part", "isolation"),
	})
}

// endpoints are the addresses that each consumer's slices in its twins name, sorted.
func endpoints(lister discoverylisters.EndpointSliceLister, twins map[string]peer.ID) map[peer.ID][]netip.Addr {
	out := map[peer.ID][]netip.Addr{}
	all, _ := lister.List(labels.Everything()) // a cache cannot fail
	for _, s := range all {
		id, in := twins[s.Namespace]
		if !in {
			continue
		}
		for _, e := range s.Endpoints {
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
					out[id] = append(out[id], a)
				}
			}
		}
	}
	for id := range out {
		slices.SortFunc(out[id], netip.Addr.Compare)
		out[id] = slices.Compact(out[id])
	}
	return out
}
