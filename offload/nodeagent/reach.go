package nodeagent

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/peerrules"
)

// keepReach maintains the table of what other clusters' packets reach here.
func (a *Agent) keepReach(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The table of an earlier run, or the closed one, stays until its new content is known.
	if !a.cfg.Twins.WaitTwins(ctx) {
		return ctx.Err()
	}
	opened := newOpened(a)
	if !opened.run(ctx) {
		return ctx.Err()
	}
	r := a.cfg.Reach
	r.Moved.Follow(ctx, r.Peers.Changed, a.cfg.Twins.TwinsChanged)
	changed, stop := r.Moved.Changed()
	defer stop()
	return peerrules.Run(ctx, peerrules.Config{
		Interface: a.cfg.Interface, Own: r.Control, Results: a.cfg.Results,
		Twins: a.cfg.Twins.Twins, Peers: a.peersOfReach, Open: opened.grants, Changed: changed,
		Whole: r.Peers.Gateways, Nodes: a.behind, Others: r.Others,
		Ours: r.Elsewhere.SetOurs,
		Tenants: func(all map[peer.ID][]netip.Addr) {
			a.tenants.Store(&all)
			r.TenantsChanged()
			r.Elsewhere.Check()
		},
		Report: func(err error) { a.Report("reach", err) },
		Guard:  a.cfg.Rules, Log: a.cfg.Log.With("part", "reach"),
	})
}

// behind are the prefixes behind other nodes of this cluster.
func (a *Agent) behind() (out []netip.Prefix) {
	for _, n := range a.cfg.Reach.Peers.Nodes() {
		out = append(out, n.Behind...)
	}
	return out
}

// peersOfReach are the peers with this cluster's pods there, by ID.
func (a *Agent) peersOfReach() (out []peerrules.Peer) {
	for _, l := range a.cfg.Reach.Peers.Links() {
		p, _ := a.cfg.Reach.At(l.ID)
		p.ID, p.Prefix, p.Control = l.ID, l.PeerMappedCIDR.Masked(), l.Addr.Addr()
		p.Known = p.Known || l.NoBorrow // no pods of this cluster may be there; the rest is being deleted
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b peerrules.Peer) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out
}
