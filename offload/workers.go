package offload

import (
	"context"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent"
	"rivulet/offload/provider"
	"rivulet/offload/provider/tenancy"
)

// consumers are the nodeagent.Consumers of the node with tunnels to peers.
type consumers struct {
	*Offload
	peers   Peers
	hosted  provider.Hosted // nil: none
	changed changes.Signal
	// away are the addresses of consumers' pods on workers, by consumer and node.
	away atomic.Pointer[map[peer.ID]map[string][]netip.Addr]
}

// Links implements nodeagent.Consumers.
func (c *consumers) Links() []peer.Link { return c.Linked(c.peers.Links()) }

// Changed implements nodeagent.Consumers.
func (c *consumers) Changed() (<-chan struct{}, func()) { return c.changed.Changed() }

// Of implements nodeagent.Consumers.
func (c *consumers) Of(id peer.ID) nodeagent.Known {
	k := nodeagent.Known{Confirmed: c.elsewhere.Confirmed(id), Under: c.Under(id), Others: c.others(id, "")}
	if c.hosted != nil {
		k.API, k.Confirmed = c.hosted.API(id), append(k.Confirmed, c.hosted.Away(id)...)
	}
	return k
}

// others are the addresses of a consumer's pods on workers except one, sorted.
func (c *consumers) others(id peer.ID, except string) (out []netip.Addr) {
	if all := c.away.Load(); all != nil {
		for node, addrs := range (*all)[id] {
			if node != except {
				out = append(out, addrs...)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// byConsumer are all addresses of consumers' pods on workers.
func (c *consumers) byConsumer() map[peer.ID][]netip.Addr {
	out := map[peer.ID][]netip.Addr{}
	if all := c.away.Load(); all != nil {
		for id := range *all {
			out[id] = c.others(id, "")
		}
	}
	return out
}

// follow keeps away current until ctx ends.
func (c *consumers) follow(ctx context.Context) {
	var signal changes.Signal
	changed, stop := signal.Changed()
	defer stop()
	signal.Follow(ctx, tenancy.Room(c.Twins()).Changed, c.peers.Changed)
	c.changed.Follow(ctx, c.peers.Changed, c.elsewhere.Changed, c.Twins().TwinsChanged)
	if c.hosted != nil {
		c.changed.Follow(ctx, c.hosted.Changed)
	}
	for {
		workers := c.workers()
		now := map[peer.ID]map[string][]netip.Addr{}
		if len(workers) > 0 {
			now = tenancy.Room(c.Twins()).Addresses(workers)
		}
		if old := c.away.Swap(&now); old == nil && len(now) > 0 || old != nil && !reflect.DeepEqual(*old, now) {
			c.changed.Notify()
			c.moved.Notify()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// workers are the prefixes of workers' pods, by node.
func (c *consumers) workers() map[string]netip.Prefix {
	out := map[string]netip.Prefix{}
	for _, r := range c.peers.Nodes() {
		for _, p := range r.Behind {
			if r.Trust.How == peer.TrustWorker && !p.IsSingleIP() {
				out[r.Node] = p
			}
		}
	}
	return out
}

// ViewOf is what the worker of that name has to know about consumers; false before it is known here.
func (o *Offload) ViewOf(worker string) (v nodeagent.View, ok bool) {
	twins, ok := o.Twins().KnownTwins()
	if !ok || o.agent == nil {
		return v, false
	}
	ids := map[peer.ID]bool{}
	for id := range maps.Values(twins) {
		ids[id] = true
	}
	v = nodeagent.Show(o.consumers, ids)
	for id, k := range v.Of {
		// Its pods on this device, and on other workers.
		workers := o.consumers.others(id, "")
		here := slices.DeleteFunc(slices.Clone(o.agent.Tenants(id)), func(a netip.Addr) bool { return slices.Contains(workers, a) })
		k.Others = slices.Concat(here, o.consumers.others(id, worker))
		slices.SortFunc(k.Others, netip.Addr.Compare)
		v.Of[id] = k
	}
	return v, true
}

// ViewChanged reports changes of ViewOf.
func (o *Offload) ViewChanged() (<-chan struct{}, func()) { return o.consumers.Changed() }
