package nodeagent

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"rivulet/fabric/peer"
	table "rivulet/fabric/reach"
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
		Cluster: reach{a, opened}, Changed: changed,
		Guard: a.cfg.Rules, Log: a.cfg.Log.With("part", "reach"),
	})
}

// reach is the cluster as peerrules sees it.
type reach struct {
	a      *Agent
	opened *opened
}

func (r reach) Twins() map[string]peer.ID        { return r.a.cfg.Twins.Twins() }
func (r reach) Whole() []netip.Prefix            { return r.a.cfg.Reach.Peers.Gateways() }
func (r reach) Others() map[peer.ID][]netip.Addr { return r.a.cfg.Reach.Others() }
func (r reach) Open() []table.Grant              { return r.opened.grants() }
func (r reach) Report(err error)                 { r.a.Report("reach", err) }

func (r reach) Nodes() (out []netip.Prefix) {
	for _, n := range r.a.cfg.Reach.Peers.Nodes() {
		out = append(out, n.Behind...)
	}
	return out
}

// Peers returns the peers with this cluster's pods there, by ID.
func (r reach) Peers() (out []peerrules.Peer) {
	for _, l := range r.a.cfg.Reach.Peers.Links() {
		p, _ := r.a.cfg.Reach.At(l.ID)
		p.ID, p.Prefix, p.Control = l.ID, l.PeerMappedCIDR.Masked(), l.Addr.Addr()
		p.Known = p.Known || l.NoBorrow // no pods of this cluster may be there; the rest is being deleted
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b peerrules.Peer) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out
}

func (r reach) SetTenants(of map[peer.ID][]netip.Addr) {
	r.a.tenants.Store(&of)
	r.a.cfg.Reach.TenantsChanged()
	r.a.cfg.Reach.Elsewhere.Check()
}

func (r reach) SetOurs(at map[peer.ID][]netip.Addr, neighbours map[peer.ID]map[peer.ID]netip.Prefix) map[netip.Addr]netip.Addr {
	return r.a.cfg.Reach.Elsewhere.SetOurs(at, neighbours)
}
