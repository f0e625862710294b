package nodeagent

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// keepHomeAddresses makes the Services of other clusters usable for their pods here at their addresses at home.
func (a *Agent) keepHomeAddresses(ctx context.Context) error {
	var signal changes.Signal
	changed, stop := signal.Changed()
	defer stop()
	var mu sync.Mutex
	var known map[peer.ID]homeaddr.Services // nil: to be computed again
	forget := func() {
		mu.Lock()
		known = nil
		mu.Unlock()
		signal.Notify()
		a.services.changed.Notify()
	}
	factory := informers.NewSharedInformerFactoryWithOptions(a.home, 0, informers.WithTransform(slimService),
		watch.Labelled(policy.ReflectedLabel))
	services := factory.Core().V1().Services().Informer()
	if _, err := services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { forget() }, DeleteFunc: func(any) { forget() },
		UpdateFunc: func(was, is any) {
			if homeAddressOf(was) != homeAddressOf(is) {
				forget()
			}
		}}); err != nil {
		return fmt.Errorf("offload: watch Services: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	factory.Start(ctx.Done())
	defer func() { cancel(); factory.Shutdown() }()
	if !a.cfg.Twins.WaitTwins(ctx) || !cache.WaitForCacheSync(ctx.Done(), services.HasSynced) {
		return ctx.Err()
	}
	twins, unsubscribe := a.cfg.Twins.TwinsChanged()
	defer unsubscribe()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-twins:
				forget()
			}
		}
	}()
	views := func(id peer.ID) homeaddr.View {
		return homeaddr.ViewOf(a.cfg.Consumers.Links(), id, a.cfg.PodCIDR, a.cfg.Consumers.Of(id).Under)
	}
	signal.Follow(ctx, a.cfg.Consumers.Changed)
	of := func(id peer.ID) homeaddr.Services {
		mu.Lock()
		defer mu.Unlock()
		if known == nil {
			known = servicesOf(services.GetStore().List(), a.cfg.Twins.Twins())
		}
		return known[id]
	}
	a.services.set(of)
	return a.cfg.HomeAddrs.Run(ctx, homeaddr.Config{
		Results: a.cfg.Results, Twins: a.cfg.Twins.Twins, Changed: changed, Services: of, View: views,
		Report: func(err error) { a.Report("addresses of home", err) },
		Log:    a.cfg.Log.With("part", "homeaddr"),
	})
}

// tenantServices are the Services of consumers, once loaded.
type tenantServices struct {
	changed changes.Signal
	mu      sync.Mutex
	of      func(peer.ID) homeaddr.Services
}

func (s *tenantServices) set(of func(peer.ID) homeaddr.Services) {
	s.mu.Lock()
	s.of = of
	s.mu.Unlock()
	s.changed.Notify()
}

// here are a consumer's cluster IPs here.
func (s *tenantServices) here(id peer.ID) iter.Seq[netip.Addr] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		return maps.Values(homeaddr.Services{})
	}
	return maps.Values(s.of(id))
}

// servicesOf maps the Services in twins, by consumer.
func servicesOf(all []any, twins map[string]peer.ID) map[peer.ID]homeaddr.Services {
	of := map[peer.ID][]homeaddr.Reflected{}
	for _, obj := range all {
		if r := homeAddressOf(obj); r.Home.IsValid() && r.Here.IsValid() {
			if id, tenant := twins[r.Namespace]; tenant {
				of[id] = append(of[id], r)
			}
		}
	}
	out := map[peer.ID]homeaddr.Services{}
	for id, list := range of {
		out[id] = homeaddr.Map(list)
	}
	return out
}

func homeAddressOf(obj any) (r homeaddr.Reflected) {
	if s, ok := obj.(*corev1.Service); ok {
		r = homeaddr.ReflectedOf(s)
	}
	return r
}

// slimService keeps the parts that homeAddressOf uses.
func slimService(obj any) (any, error) {
	s, ok := obj.(*corev1.Service)
	if !ok {
		return obj, nil
	}
	slim := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion},
		Spec: corev1.ServiceSpec{ClusterIP: s.Spec.ClusterIP}}
	for _, key := range []string{policy.HomeAddressAnnotation, policy.HomeNodeAnnotation} {
		if at, told := s.Annotations[key]; told {
			metav1.SetMetaDataAnnotation(&slim.ObjectMeta, key, at)
		}
	}
	for _, p := range s.Spec.Ports {
		slim.Spec.Ports = append(slim.Spec.Ports, corev1.ServicePort{Protocol: p.Protocol, Port: p.Port})
	}
	return slim, nil
}
