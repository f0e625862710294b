package gatewaypod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/changes"
	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/offload/foreign"
	"rivulet/offload/watch"
)

// The owner of a Service at the campus.
const (
	homeNamespace = "rivulet.dev/home-namespace"
	homeName      = "rivulet.dev/home-name"
)

// turnPause collects changes that come together.
const turnPause = 100 * time.Millisecond

// retryServices is the pause before a failed write is repeated.
const retryServices = 10 * time.Second

// checkAgain is the interval of checks without events: whether a pod is reachable is decided elsewhere, and may change
// shortly after the event.
const checkAgain = 30 * time.Second

// followServices maintains home's Services at the campus, and their endpoints in the gateway's configuration.
func (g *Gateway) followServices(ctx context.Context) error {
	home := informers.NewSharedInformerFactory(g.cfg.Home, 0)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer home.Shutdown()
	defer cancel()
	services, slicesAt := home.Core().V1().Services(), home.Discovery().V1().EndpointSlices()
	copies := foreign.Informer(g.kept, g.campus, g.campus.CoreV1().Services(g.cfg.Namespace), &corev1.Service{}, g.selector(), watch.Unmanaged)
	turned := make(chan struct{}, 1)
	turn := func() { changes.Poke(turned) }
	var synced []cache.InformerSynced
	for _, i := range []cache.SharedIndexInformer{services.Informer(), slicesAt.Informer(), copies} {
		if _, err := i.AddEventHandler(watch.Changes(turn)); err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		synced = append(synced, i.HasSynced)
	}
	home.Start(ctx.Done())
	running.Go(func() { copies.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	changed, stop := g.cfg.Changed()
	defer stop()
	for {
		all, err := services.Lister().List(labels.Everything())
		ends, err2 := slicesAt.Lister().List(labels.Everything())
		have, err3 := corelisters.NewServiceLister(copies.GetIndexer()).List(labels.Everything())
		if err := errors.Join(err, err2, err3); err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		err = g.serve(ctx, all, ends, have)
		g.problem("services", err)
		again := checkAgain
		if err != nil {
			again = retryServices
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-turned:
		case <-changed:
		case <-time.After(again):
		}
		changes.Wait(ctx, turnPause)
	}
}

// serve writes the campus's Services from home's, and updates the gateway.
func (g *Gateway) serve(ctx context.Context, all []*corev1.Service, ends []*discoveryv1.EndpointSlice, have []*corev1.Service) error {
	g.mu.Lock()
	was := g.services
	home, prefix := g.want.Home, g.want.Prefix
	g.mu.Unlock()
	all = slices.DeleteFunc(slices.Clone(all), func(s *corev1.Service) bool {
		return s.DeletionTimestamp != nil || !g.cfg.Reflects(s.Namespace)
	})
	if way, ends2, ok := wayHome(g.cfg.HomeAPI); ok {
		all = append(slices.DeleteFunc(all, func(s *corev1.Service) bool { return s.Namespace == way.Namespace && s.Name == way.Name }), way)
		ends = append(slices.DeleteFunc(slices.Clone(ends), func(e *discoveryv1.EndpointSlice) bool {
			return e.Namespace == way.Namespace && e.Labels[discoveryv1.LabelServiceName] == way.Name
		}), ends2)
	}
	want := desired(all, ends, was, home, prefix)
	api := g.campus.CoreV1().Services(g.cfg.Namespace)
	var failed []error
	copies := map[string]*corev1.Service{}
	for _, c := range have {
		copies[c.Name] = c
	}
	used := map[string]bool{g.name: true}
	place(want, prefix, func(namespace, name string, ports []gatewayproto.Port) (at netip.Addr) {
		away := g.cfg.ServiceName(namespace, name)
		used[away] = true
		made, err := g.ensureService(ctx, gatewayproto.Service{Namespace: namespace, Name: name, Ports: ports}, away, copies[away])
		if err != nil {
			failed = append(failed, err)
			return at
		}
		at, _ = netip.ParseAddr(made.Spec.ClusterIP)
		return at
	})
	for name := range copies {
		if !used[name] {
			if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				failed = append(failed, fmt.Errorf("gateway: delete Service %s: %w", name, err))
			}
		}
	}
	g.mu.Lock()
	g.services = want
	g.renew()
	g.mu.Unlock()
	return errors.Join(failed...)
}

// endpoints are those of a port that are ready and reachable, in a fixed order.
func endpoints(behind []*discoveryv1.EndpointSlice, port, protocol string, reach func(netip.Addr) bool) (out []netip.AddrPort) {
	for _, slice := range behind {
		for _, p := range slice.Ports {
			if p.Port == nil || p.Name != nil && *p.Name != port || p.Name == nil && port != "" ||
				p.Protocol != nil && !strings.EqualFold(string(*p.Protocol), protocol) {
				continue
			}
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready != nil && !*e.Conditions.Ready {
					continue
				}
				for _, a := range e.Addresses {
					if ip, err := netip.ParseAddr(a); err == nil && reach(ip) {
						out = append(out, netip.AddrPortFrom(ip, uint16(*p.Port)))
					}
				}
			}
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

// ensureService makes the campus's Service of one of home's.
func (g *Gateway) ensureService(ctx context.Context, s gatewayproto.Service, name string, have *corev1.Service) (*corev1.Service, error) {
	want := &corev1.Service{ObjectMeta: g.meta(name), Spec: corev1.ServiceSpec{Selector: map[string]string{podLabel: g.name}}}
	want.Annotations = map[string]string{homeNamespace: s.Namespace, homeName: s.Name}
	for _, p := range s.Ports {
		want.Spec.Ports = append(want.Spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: corev1.Protocol(strings.ToUpper(p.Protocol)),
			Port: int32(p.Port), TargetPort: intstr.FromInt32(int32(p.Listen))})
	}
	api := g.campus.CoreV1().Services(g.cfg.Namespace)
	if have == nil {
		made, err := api.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			if made, err = api.Get(ctx, name, metav1.GetOptions{}); err == nil && !g.ours(made) {
				return nil, fmt.Errorf("gateway: Service %s/%s: there is a Service %s at the campus that is not ours: remove it", s.Namespace, s.Name, name)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("gateway: Service %s/%s: %w", s.Namespace, s.Name, err)
		}
		have = made
	}
	if reflect.DeepEqual(have.Spec.Selector, want.Spec.Selector) && slices.EqualFunc(have.Spec.Ports, want.Spec.Ports, samePort) {
		return have, nil
	}
	next := have.DeepCopy()
	next.Spec.Selector, next.Spec.Ports = want.Spec.Selector, want.Spec.Ports
	made, err := api.Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("gateway: Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return made, nil
}

func samePort(a, b corev1.ServicePort) bool {
	return a.Name == b.Name && a.Protocol == b.Protocol && a.Port == b.Port && a.TargetPort == b.TargetPort
}
