package fabric

import (
	"cmp"
	"log/slog"
	"net/netip"
	"slices"

	"rivulet/fabric/ipam"
	"rivulet/fabric/peer"
)

// prefixes chooses the prefixes under which this cluster sees peers. It has no state.
type prefixes struct {
	pods, services netip.Prefix
	settings       *settings // the block to choose from
	lans           LANs
	// host are other networks of the host; it may be nil.
	host     func() []netip.Prefix
	gateways *gateways
	members  *members
	store    peer.Store
	log      *slog.Logger
}

// choose returns the prefix under which to see a peer's pods: one of the block that is not in use.
func (p *prefixes) choose(id peer.ID, previous netip.Prefix) (netip.Prefix, error) {
	return p.chooseBeside(id, previous, p.members.records())
}

// chooseBeside is choose with the records of all peers. Where networks of the host leave nothing free, a part of a
// wider one is taken: this cluster's route is more specific, so the peer is reached, and the host loses only that part.
func (p *prefixes) chooseBeside(id peer.ID, previous netip.Prefix, records []peer.Record) (netip.Prefix, error) {
	taken := append(p.lans.LANs().Prefixes(), p.pods)
	if p.services.IsValid() {
		taken = append(taken, p.services)
	}
	taken = append(taken, p.gateways.prefixesBut(id)...)
	for _, r := range records {
		if r.ID != id && r.PeerMappedCIDR.IsValid() {
			taken = append(taken, r.PeerMappedCIDR)
		}
		// The tunnel would run through itself.
		for _, at := range []netip.AddrPort{r.Tunnel, r.Control} {
			if a := at.Addr().Unmap(); a.Is4() {
				taken = append(taken, netip.PrefixFrom(a, 32))
			}
		}
	}
	var host []netip.Prefix
	if p.host != nil {
		host = slices.Clone(p.host())
	}
	not4 := func(p netip.Prefix) bool { return !p.Addr().Is4() }
	taken, host = slices.DeleteFunc(taken, not4), slices.DeleteFunc(host, not4)
	block, bits := p.settings.block.get(), p.pods.Bits()
	chosen, err := ipam.Choose(block, bits, id, previous, slices.Concat(taken, host))
	if err != nil {
		host = slices.DeleteFunc(host, func(p netip.Prefix) bool { return p.Bits() < bits })
		if part, e := ipam.Choose(block, bits, id, previous, slices.Concat(taken, host)); e == nil {
			return part, nil
		}
	}
	return chosen, err
}

// rechoose replaces the prefix of every stored record whose prefix is not of the block (the block has changed), and
// returns their IDs. The peer receives the new one in the exchange after the start; until then no packets pass.
func (p *prefixes) rechoose(records []peer.Record) (changed []peer.ID) {
	var byID []*peer.Record
	for i := range records {
		byID = append(byID, &records[i])
	}
	slices.SortFunc(byID, func(a, b *peer.Record) int { return cmp.Compare(a.ID, b.ID) })
	var given []netip.Prefix
	for _, r := range byID {
		was := r.PeerMappedCIDR
		if ipam.Within(p.settings.block.get(), p.pods.Bits(), was) && !slices.Contains(given, was) {
			given = append(given, was)
			continue
		}
		r.PeerMappedCIDR = netip.Prefix{} // nothing of the old one counts
		next, err := p.chooseBeside(r.ID, netip.Prefix{}, records)
		if err == nil {
			r.PeerMappedCIDR = next
			err = p.store.PutPeer(*r)
		}
		if err != nil { // the exchange retries
			r.PeerMappedCIDR = netip.Prefix{}
			p.log.Warn("no prefix for a peer yet", "peer", r.Name, "err", err)
			continue
		}
		given, changed = append(given, next), append(changed, r.ID)
		p.log.Info("a peer is seen under another prefix from now on", "peer", r.Name, "was", was, "prefix", next)
	}
	return changed
}

// CheckPrefixes checks the prefixes after a change of the host's networks, for example a VPN: peers under one of these
// networks get another prefix, in an exchange that is due at once. Their connections end; other peers are not affected.
func (p *prefixes) CheckPrefixes() {
	for _, r := range p.members.records() {
		if !r.PeerMappedCIDR.IsValid() {
			continue
		}
		if better, err := p.choose(r.ID, r.PeerMappedCIDR); err == nil && better != r.PeerMappedCIDR {
			p.log.Warn("the prefix of a peer cannot stay; another one is agreed on", "peer", r.Name, "prefix", r.PeerMappedCIDR)
			p.members.due(r.ID)
		}
	}
}
