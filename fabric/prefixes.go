package fabric

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"rivulet/fabric/ipam"
	"rivulet/fabric/peer"
)

// choose returns the prefix under which to see a peer's pods: one of the block that is not in use. Where networks of
// the host leave nothing free, a part of a wider one is taken: this cluster's route is more specific, so the peer is
// reached, and the host loses only that part.
func (f *Fabric) choose(id peer.ID, previous netip.Prefix) (netip.Prefix, error) {
	taken := append(f.cfg.LANs.LANs().Prefixes(), f.cfg.PodCIDR)
	if f.cfg.ServiceCIDR.IsValid() {
		taken = append(taken, f.cfg.ServiceCIDR)
	}
	var host []netip.Prefix
	if f.cfg.TakenPrefixes != nil {
		host = f.cfg.TakenPrefixes()
	}
	f.members.mu.Lock()
	taken = append(taken, f.Registry.PrefixesBut(id)...)
	for _, m := range f.members.all {
		if !m.Pinned() {
			continue
		}
		if m.Record().ID != id && m.Record().PeerMappedCIDR.IsValid() {
			taken = append(taken, m.Record().PeerMappedCIDR)
		}
		// The tunnel would run through itself.
		for _, at := range []netip.AddrPort{m.Record().Tunnel, m.Record().Control} {
			if a := at.Addr().Unmap(); a.Is4() {
				taken = append(taken, netip.PrefixFrom(a, 32))
			}
		}
	}
	f.members.mu.Unlock()
	only4 := func(ps []netip.Prefix) []netip.Prefix {
		return slices.DeleteFunc(ps, func(p netip.Prefix) bool { return !p.Addr().Is4() })
	}
	taken, host = only4(taken), only4(slices.Clone(host))
	block, bits := f.settings.block.get(), f.cfg.PodCIDR.Bits()
	p, err := ipam.Choose(block, bits, id, previous, slices.Concat(taken, host))
	if err != nil {
		host = slices.DeleteFunc(host, func(p netip.Prefix) bool { return p.Bits() < bits })
		if p, e := ipam.Choose(block, bits, id, previous, slices.Concat(taken, host)); e == nil {
			return p, nil
		}
	}
	return p, err
}

// rechoose replaces the prefix of every loaded peer whose prefix is not of the block (the block has changed), before
// the tunnel is configured. The peer receives the new one in the exchange after the start; until then no packets pass.
func (f *Fabric) rechoose() {
	var given []netip.Prefix
	for _, m := range f.sorted() {
		if ipam.Within(f.settings.block.get(), f.cfg.PodCIDR.Bits(), m.Record().PeerMappedCIDR) && !slices.Contains(given, m.Record().PeerMappedCIDR) {
			given = append(given, m.Record().PeerMappedCIDR)
			continue
		}
		r, was := m.Record(), m.Record().PeerMappedCIDR
		r.PeerMappedCIDR = netip.Prefix{}
		m.Pin(time.Now(), r) // nothing of the old one counts
		p, err := f.choose(r.ID, netip.Prefix{})
		if err == nil {
			r.PeerMappedCIDR = p
			err = f.cfg.Store.PutPeer(r)
		}
		if err != nil { // the exchange retries
			f.log.Warn("no prefix for a peer yet", "peer", r.Name, "err", err)
			continue
		}
		f.pin(m, r)
		given = append(given, p)
		f.log.Info("a peer is seen under another prefix from now on", "peer", r.Name, "was", was, "prefix", p)
		f.do(m, m.Due(time.Now(), true))
	}
}

// CheckPrefixes checks the prefixes after a change of the host's networks, for example a VPN: peers under one of these
// networks get another prefix, in an exchange that is due at once. Their connections end; other peers are not affected.
func (f *Fabric) CheckPrefixes() {
	f.members.mu.Lock()
	var records []peer.Record
	for _, m := range f.members.all {
		if m.Pinned() && m.Record().PeerMappedCIDR.IsValid() {
			records = append(records, m.Record())
		}
	}
	f.members.mu.Unlock()
	slices.SortFunc(records, func(a, b peer.Record) int { return cmp.Compare(a.ID, b.ID) })
	for _, r := range records {
		better, err := f.choose(r.ID, r.PeerMappedCIDR)
		if err != nil || better == r.PeerMappedCIDR {
			continue
		}
		f.log.Warn("the prefix of a peer cannot stay; another one is agreed on", "peer", r.Name, "prefix", r.PeerMappedCIDR)
		f.members.mu.Lock()
		if m := f.members.all[string(r.ID)]; m != nil && m.Pinned() {
			f.do(m, m.Due(time.Now(), true))
		}
		f.members.mu.Unlock()
	}
}
