package network

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"rivulet/appliance/config/fixed"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/podnet"
	"rivulet/offload/nodeagent/resets"
)

// Prefixes manages the prefixes of peers' pods; fabric.Fabric is one.
type Prefixes interface {
	Links() []peer.Link
	Gateways() []netip.Prefix
	Changed() (<-chan struct{}, func())
	// SetPeerCIDR chooses prefixes of another block; CheckPrefixes replaces those that overlap networks of the host.
	SetPeerCIDR(block netip.Prefix)
	CheckPrefixes()
}

// Ranges receives the address ranges of pods on peers; netpol.Watcher is one.
type Ranges interface{ SetPeers(ranges []netip.Prefix) }

// SetBlock sets the block of peers' prefixes; policies receive it first.
func SetBlock(f Prefixes, block netip.Prefix, to Ranges) {
	setRanges(f, block, to)
	f.SetPeerCIDR(block)
}

// setRanges passes on the ranges of pods on peers: the block and, during a change of it, the present prefixes.
func setRanges(f Prefixes, block netip.Prefix, to Ranges) {
	ranges := append([]netip.Prefix{block}, f.Gateways()...)
	for _, l := range f.Links() {
		ranges = append(ranges, l.PeerMappedCIDR)
	}
	slices.SortFunc(ranges[1:], netip.Prefix.Compare)
	to.SetPeers(slices.DeleteFunc(ranges, func(p netip.Prefix) bool {
		return p != block && (!p.IsValid() || p.Bits() >= block.Bits() && block.Contains(p.Addr()))
	}))
}

// FollowPrefixes keeps the prefixes apart from the host's networks and passes them on until ctx ends. It ends
// connections under dropped prefixes, whose clients would wait for an answer for ever.
func FollowPrefixes(ctx context.Context, f Prefixes, block func() netip.Prefix, to Ranges, log *slog.Logger) {
	go netmon.FollowRoutes(ctx, fixed.Tunnel, log, f.CheckPrefixes)
	followPrefixes(ctx, f, block, to, func(gone []netip.Prefix) {
		pods, err := podnet.Read(fixed.CNIResults, podnet.Exists)
		ended := 0
		if err == nil {
			ended, err = resets.Prefixes(pods, gone)
		}
		log.Info("prefixes of peers are given up", "prefixes", gone, "connections", ended)
		if err != nil {
			log.Warn("connections to pods under these prefixes may go on to wait", "prefixes", gone, "err", err)
		}
	})
}

func followPrefixes(ctx context.Context, f Prefixes, block func() netip.Prefix, to Ranges, end func(gone []netip.Prefix)) {
	changed, stop := f.Changed()
	defer stop()
	type pair struct{ mapped, local netip.Prefix } // a connection needs both unchanged
	var before map[peer.ID]pair
	for {
		setRanges(f, block(), to)
		now := map[peer.ID]pair{}
		for _, l := range f.Links() {
			now[l.ID] = pair{l.PeerMappedCIDR, l.LocalMappedCIDR}
		}
		var gone []netip.Prefix
		for id, p := range before {
			if p != now[id] {
				gone = append(gone, p.mapped)
			}
		}
		if before = now; len(gone) > 0 {
			end(gone)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
