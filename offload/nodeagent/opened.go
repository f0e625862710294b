package nodeagent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"golang.org/x/sys/unix"

	"rivulet/fabric/peer"
	table "rivulet/fabric/reach"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// opened watches what the owner opens to other clusters: namespaces and Services with policy.OpenLabel. It reads pods
// and EndpointSlices only of namespaces with an opening. Twins open nothing: their labels come from their consumers.
type opened struct {
	a          *Agent
	namespaces cache.SharedIndexInformer // with the label
	services   cache.SharedIndexInformer // with the label
	inside     map[string]*inside        // by namespace
	ctx        context.Context
}

// inside are the watches of one namespace.
type inside struct {
	pods, slices cache.SharedIndexInformer
	stop         context.CancelFunc
}

func newOpened(a *Agent) *opened {
	labelled := informers.NewSharedInformerFactoryWithOptions(a.home, 0, informers.WithTransform(openable),
		watch.Labelled(policy.OpenLabel))
	return &opened{a: a, inside: map[string]*inside{},
		namespaces: labelled.Core().V1().Namespaces().Informer(), services: labelled.Core().V1().Services().Informer()}
}

// openable keeps the parts that grants uses.
func openable(obj any) (any, error) {
	switch obj := obj.(type) {
	case *corev1.Pod:
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: obj.Namespace, Name: obj.Name, UID: obj.UID, ResourceVersion: obj.ResourceVersion},
			Status: corev1.PodStatus{Phase: obj.Status.Phase, PodIPs: obj.Status.PodIPs}}, nil
	case metav1.Object:
		obj.SetManagedFields(nil)
	}
	return obj, nil
}

// run starts the watches, and returns when all are loaded: false if ctx ended before.
func (n *opened) run(ctx context.Context) bool {
	n.ctx = ctx
	var synced []cache.InformerSynced
	for _, inf := range []cache.SharedIndexInformer{n.namespaces, n.services} {
		n.follow(ctx, inf)
		synced = append(synced, inf.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return false
	}
	wishes, _ := n.wishes() // what is open stays open over a restart
	n.check(wishes)
	synced = nil
	for _, in := range n.inside {
		synced = append(synced, in.pods.HasSynced, in.slices.HasSynced)
	}
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}

func (n *opened) follow(ctx context.Context, inf cache.SharedIndexInformer) {
	_, _ = inf.AddEventHandler(watch.Changes(n.a.cfg.Reach.Moved.Notify)) // fails only on a stopped informer
	go inf.RunWithContext(ctx)
}

// request is one opening, without a service for a whole namespace. to is a value of OpenLabel.
type request struct{ namespace, service, to string }

// wishes are all openings, and the problems of invalid ones.
func (n *opened) wishes() (map[request]bool, []string) {
	out, faults, twins := map[request]bool{}, []string(nil), n.a.cfg.Twins.Twins()
	add := func(o metav1.Object, namespace, service string) {
		to := o.GetLabels()[policy.OpenLabel]
		if _, twin := twins[namespace]; twin || to == "" {
			return
		}
		if to != policy.OpenToAll && to != policy.OpenToGroup && !peer.ID(to).Valid() {
			faults = append(faults, fmt.Sprintf("label %s=%s of %s opens nothing: use rivulet open", policy.OpenLabel, to, strings.TrimSuffix(namespace+"/"+service, "/")))
			return
		}
		out[request{namespace, service, to}] = true
	}
	for _, obj := range n.namespaces.GetStore().List() {
		ns := obj.(*corev1.Namespace)
		add(ns, ns.Name, "")
	}
	for _, obj := range n.services.GetStore().List() {
		s := obj.(*corev1.Service)
		add(s, s.Namespace, s.Name)
	}
	if n.a.cfg.Reach.Exported != nil {
		services, to := n.a.cfg.Reach.Exported()
		for _, s := range services {
			for _, id := range to {
				out[request{s.Namespace, s.Name, string(id)}] = true
			}
		}
	}
	slices.Sort(faults)
	return out, faults
}

// grants are the current openings, sorted. Only addresses of this cluster's pods count.
func (n *opened) grants() []table.Grant {
	wishes, faults := n.wishes()
	var err error
	if len(faults) > 0 {
		err = fmt.Errorf("%s", strings.Join(faults, "; "))
	}
	n.a.Report("opened", err)
	n.check(wishes)
	open := map[string][]string{}
	for w := range wishes {
		open[w.to] = append(open[w.to], strings.TrimSuffix(w.namespace+"/"+w.service, "/"))
	}
	for _, all := range open {
		slices.Sort(all)
	}
	n.a.opened.Store(&open)
	pods, ports := map[string]map[netip.Addr]bool{}, map[string]map[table.Port]bool{} // by to
	for w := range wishes {
		in := n.inside[w.namespace]
		if w.service == "" {
			if pods[w.to] == nil {
				pods[w.to] = map[netip.Addr]bool{}
			}
			maps.Copy(pods[w.to], n.podsOf(in))
			continue
		}
		if ports[w.to] == nil {
			ports[w.to] = map[table.Port]bool{}
		}
		maps.Copy(ports[w.to], n.portsOf(in, w.service))
	}
	var out []table.Grant
	add := func(to string, from netip.Prefix) {
		g := table.Grant{From: from, Pods: slices.SortedFunc(maps.Keys(pods[to]), netip.Addr.Compare), Ports: slices.SortedFunc(maps.Keys(ports[to]), table.Port.Compare)}
		if len(g.Pods)+len(g.Ports) > 0 {
			out = append(out, g)
		}
	}
	add(policy.OpenToAll, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	links := n.a.cfg.Reach.Peers.Links()
	slices.SortFunc(links, func(a, b peer.Link) int { return strings.Compare(string(a.ID), string(b.ID)) })
	for _, l := range links {
		add(string(l.ID), l.PeerMappedCIDR.Masked())
		if l.Trust == peer.TrustGroup {
			add(policy.OpenToGroup, l.PeerMappedCIDR.Masked())
		}
	}
	return out
}

// check watches the namespaces that grants needs, and no others.
func (n *opened) check(wishes map[request]bool) {
	wanted := map[string]bool{}
	for w := range wishes {
		wanted[w.namespace] = true
	}
	for ns, in := range n.inside {
		if !wanted[ns] {
			in.stop()
			delete(n.inside, ns)
		}
	}
	for ns := range wanted {
		if n.inside[ns] != nil {
			continue
		}
		ctx, stop := context.WithCancel(n.ctx)
		factory := informers.NewSharedInformerFactoryWithOptions(n.a.home, 0, informers.WithNamespace(ns), informers.WithTransform(openable))
		in := &inside{pods: factory.Core().V1().Pods().Informer(), slices: factory.Discovery().V1().EndpointSlices().Informer(), stop: stop}
		n.inside[ns] = in
		n.follow(ctx, in.pods)
		n.follow(ctx, in.slices)
	}
}

func (n *opened) own(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	return a, err == nil && n.a.cfg.PodCIDR.Contains(a)
}

func (n *opened) podsOf(in *inside) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, obj := range in.pods.GetStore().List() {
		for _, a := range addressesOf(obj, n.a.cfg.PodCIDR) {
			out[a] = true
		}
	}
	return out
}

var protocols = map[corev1.Protocol]byte{corev1.ProtocolTCP: unix.IPPROTO_TCP, corev1.ProtocolUDP: unix.IPPROTO_UDP, corev1.ProtocolSCTP: unix.IPPROTO_SCTP}

func (n *opened) portsOf(in *inside, service string) map[table.Port]bool {
	out := map[table.Port]bool{}
	of := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service})
	for _, obj := range in.slices.GetStore().List() {
		s := obj.(*discoveryv1.EndpointSlice)
		if !of.Matches(labels.Set(s.Labels)) {
			continue
		}
		for _, e := range s.Endpoints {
			for _, text := range e.Addresses {
				a, ok := n.own(text)
				for _, p := range s.Ports {
					if ok && p.Port != nil && p.Protocol != nil {
						out[table.Port{Addr: a, Protocol: protocols[*p.Protocol], Port: uint16(*p.Port)}] = true
					}
				}
			}
		}
	}
	return out
}
