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
	a.cfg.Moved.Follow(ctx, a.cfg.Peers.Changed, a.cfg.Twins.TwinsChanged)
	changed, stop := a.cfg.Moved.Changed()
	defer stop()
	return peerrules.Run(ctx, peerrules.Config{
		Interface: a.cfg.Interface, Own: a.cfg.Control, Results: a.cfg.Results,
		Twins: a.cfg.Twins.Twins, Peers: a.peersOfReach, Open: opened.grants, Changed: changed,
		Whole: a.cfg.Peers.Gateways, Nodes: a.cfg.Peers.Behind,
		Ours: a.cfg.Elsewhere.SetOurs,
		Tenants: func(all map[peer.ID][]netip.Addr) {
			a.tenants.Store(&all)
			a.cfg.TenantsChanged()
			a.cfg.Elsewhere.Check()
		},
		Report: func(err error) { a.Report("reach", err) },
		Guard:  a.cfg.Rules, Log: a.cfg.Log.With("part", "reach"),
	})
}

// peersOfReach are the peers with this cluster's pods there, by ID.
func (a *Agent) peersOfReach() (out []peerrules.Peer) {
	for _, l := range a.cfg.Peers.Links() {
		p, _ := a.cfg.At(l.ID)
		p.ID, p.Prefix, p.Control = l.ID, l.PeerMappedCIDR.Masked(), l.Addr.Addr()
		p.Known = p.Known || l.NoBorrow // no pods of this cluster may be there; the rest is being deleted
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b peerrules.Peer) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out
}
