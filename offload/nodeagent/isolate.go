package nodeagent

import (
	"cmp"
	"context"
	"iter"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/isolation"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// isolate maintains the isolation of the pods of other clusters that run here.
func (a *Agent) isolate(ctx context.Context) error {
	var signal changes.Signal
	changed, stop := signal.Changed()
	defer stop()
	// Controllers of lent ingress classes reach tenants.
	lent := informers.NewSharedInformerFactoryWithOptions(a.home, 0, watch.Labelled(policy.LentLabel))
	classes := lent.Networking().V1().IngressClasses()
	if _, err := classes.Informer().AddEventHandler(watch.Changes(signal.Notify)); err != nil {
		return err
	}
	// Services of the LAN: packets to their node ports reach tenants.
	lan := informers.NewSharedInformerFactoryWithOptions(a.home, 0, watch.Labelled(policy.LANLabel))
	ports := lan.Core().V1().Services()
	if _, err := ports.Informer().AddEventHandler(watch.Changes(signal.Notify)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	lent.Start(ctx.Done())
	lan.Start(ctx.Done())
	defer func() { cancel(); lent.Shutdown(); lan.Shutdown() }()
	// The tables of an earlier run stay until their new content is known.
	if !a.cfg.Twins.WaitTwins(ctx) || !cache.WaitForCacheSync(ctx.Done(), classes.Informer().HasSynced, ports.Informer().HasSynced) {
		return ctx.Err()
	}
	signal.Follow(ctx, a.cfg.Consumers.Changed, a.cfg.Twins.TwinsChanged, a.services.changed.Changed)
	lending := func() (namespaces []string) {
		all, _ := classes.Lister().List(labels.Everything()) // a cache cannot fail
		for _, c := range all {
			namespaces = append(namespaces, c.Labels[policy.LentLabel])
		}
		return namespaces
	}
	elsewhere := controllers{client: a.home, pods: a.cfg.PodCIDR, changed: signal.Notify, inside: map[string]*watched{}}
	const part = "isolation of tenants"
	fewer := map[string]bool{} // consumers with a problem
	return isolation.Run(ctx, isolation.Config{
		Held:    a.cfg.Held,
		Results: a.cfg.Results, Pods: a.cfg.PodCIDR.Masked(), DNS: a.cfg.DNS, Networks: a.cfg.Networks,
		Twins: a.cfg.Twins.Twins, Links: a.cfg.Consumers.Links, Changed: changed,
		Endpoints: func(consumer peer.ID) iter.Seq[netip.Addr] {
			return slices.Values(a.cfg.Consumers.Of(consumer).Confirmed)
		},
		Others: func(consumer peer.ID) []netip.Addr { return a.cfg.Consumers.Of(consumer).Others }, Server: a.cfg.Server,
		Services: a.services.here, API: func(consumer peer.ID) netip.AddrPort { return a.cfg.Consumers.Of(consumer).API },
		LAN: func(consumer peer.ID) []isolation.Port {
			all, _ := ports.Lister().List(labels.Everything()) // a cache cannot fail
			return lanPorts(all, a.cfg.Twins.Twins(), consumer)
		},
		Ingress: lending, Controllers: func() []netip.Addr { return elsewhere.addresses(ctx, lending()) },
		Report: func(err error, less map[peer.ID]error) {
			a.Report(part, err)
			was := fewer
			fewer = map[string]bool{}
			for id, why := range less {
				name := part + " of " + a.peerName(id)
				fewer[name] = true
				a.Report(name, why)
			}
			for name := range was {
				if !fewer[name] {
					a.Report(name, nil)
				}
			}
		},
		Guard: a.cfg.Rules, Log: a.cfg.Log.With("part", "isolation"),
	})
}

func (a *Agent) peerName(id peer.ID) string {
	for _, l := range a.cfg.Consumers.Links() {
		if l.ID == id {
			return cmp.Or(l.Name, id.Short())
		}
	}
	return id.Short()
}

// lanPorts are the node ports that lead to a consumer's tenants, sorted. Consumers cannot write them, see tenancy.LAN.
func lanPorts(all []*corev1.Service, twins map[string]peer.ID, consumer peer.ID) (out []isolation.Port) {
	for _, s := range all {
		if twins[s.Namespace] != consumer || s.Spec.Type != corev1.ServiceTypeNodePort {
			continue
		}
		for _, p := range s.Spec.Ports {
			out = append(out, isolation.Port{Protocol: protocols[p.Protocol], Number: uint16(p.NodePort)})
		}
	}
	slices.SortFunc(out, func(a, b isolation.Port) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Protocol, b.Protocol))
	})
	return out
}
