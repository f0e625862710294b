package fabric

import (
	"net/netip"
	"slices"

	"rivulet/fabric/peer"
)

// choose adds to ChoosePrefix all that is in use. Where networks of the host leave
// nothing free, a part of one that is wider is taken: our route is the more exact
// one, so the peer is reached, and the host loses only that part.
func (f *Fabric) choose(id peer.ID, theirs, previous netip.Prefix) (netip.Prefix, error) {
	taken := append(f.cfg.LANs.LANs().Prefixes(), f.cfg.PodCIDR)
	if f.cfg.ServiceCIDR.IsValid() {
		taken = append(taken, f.cfg.ServiceCIDR)
	}
	var host []netip.Prefix
	if f.cfg.TakenPrefixes != nil {
		host = f.cfg.TakenPrefixes()
	}
	f.mu.Lock()
	taken = append(taken, f.gatewayPrefixes(id)...)
	for _, m := range f.members {
		if !m.pinned {
			continue
		}
		if m.rec.ID != id && m.rec.Remote.IsValid() {
			taken = append(taken, m.rec.Remote)
		}
		// The tunnel would run through itself.
		for _, at := range []netip.AddrPort{m.rec.Tunnel, m.rec.Control} {
			if a := at.Addr().Unmap(); a.Is4() {
				taken = append(taken, netip.PrefixFrom(a, 32))
			}
		}
	}
	f.mu.Unlock()
	only4 := func(ps []netip.Prefix) []netip.Prefix {
		return slices.DeleteFunc(ps, func(p netip.Prefix) bool { return !p.Addr().Is4() })
	}
	taken, host = only4(taken), only4(slices.Clone(host))
	p, err := f.cfg.ChoosePrefix(id, theirs, previous, slices.Concat(taken, host))
	if err != nil {
		host = slices.DeleteFunc(host, func(p netip.Prefix) bool { return p.Bits() < theirs.Bits() })
		if p, e := f.cfg.ChoosePrefix(id, theirs, previous, slices.Concat(taken, host)); e == nil {
			return p, nil
		}
	}
	return p, err
}

// CheckPrefixes is for a caller who knows that the host has other networks now, a VPN
// say: peers that are seen under one of them get another prefix, in an exchange
// that is due at once. Their connections end; those of other peers do not notice.
func (f *Fabric) CheckPrefixes() {
	f.mu.Lock()
	var records []peer.Record
	for _, m := range f.members {
		if m.pinned && m.rec.Remote.IsValid() && m.rec.Theirs.IsValid() {
			records = append(records, m.rec)
		}
	}
	f.mu.Unlock()
	for _, r := range records {
		better, err := f.choose(r.ID, r.Theirs, r.Remote)
		if err != nil || better == r.Remote {
			continue
		}
		f.log.Warn("the prefix of a peer is a network of this host now; another one is agreed on", "peer", r.Name, "prefix", r.Remote)
		f.mu.Lock()
		if m := f.members[string(r.ID)]; m != nil && m.pinned {
			f.due(m, true)
		}
		f.mu.Unlock()
	}
}
