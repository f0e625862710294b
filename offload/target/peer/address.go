package peer

import (
	"net/netip"
	"slices"

	"rivulet/fabric/peer"
)

// Home translates an address of one of the peer's pods to home's view.
func (t *Target) Home(addr netip.Addr) (netip.Addr, bool) {
	return peer.Translate(addr, t.cfg.Link.PeerCIDR, t.cfg.Link.PeerMappedCIDR)
}

// Away translates a pod address in home's view to the peer's view.
//
//	in home's prefix for this peer     the peer's own pod
//	in home's pod CIDR                 home's pod, under the prefix the peer has for home
//	in home's prefix for another peer  that peer's pod, under the prefix this peer has for it, or through home
func (t *Target) Away(addr netip.Addr) (netip.Addr, bool) {
	link := t.cfg.Link
	if own, ok := peer.Translate(addr, link.PeerMappedCIDR, link.PeerCIDR); ok {
		return own, true
	}
	if ours, ok := peer.Translate(addr, t.cfg.PodCIDR, link.LocalMappedCIDR); ok {
		return ours, true
	}
	t.mu.Lock()
	neighbours := t.latest.Neighbours
	t.mu.Unlock()
	for _, other := range t.cfg.Links() {
		if other.ID == link.ID {
			continue
		}
		if t.cfg.Relay != nil {
			if by, ok := t.cfg.Relay.Through(link.ID, other.ID, addr); ok {
				return peer.Translate(by, t.cfg.PodCIDR, link.LocalMappedCIDR)
			}
		}
		if theirs, ok := peer.Translate(addr, other.PeerMappedCIDR, other.PeerCIDR); ok {
			prefix, known := neighbours[other.ID]
			if !known {
				return netip.Addr{}, false
			}
			return peer.Translate(theirs, other.PeerCIDR, prefix)
		}
	}
	return netip.Addr{}, false
}

// Tenants are the addresses of home's pods at the peer, in home's view, and the peers that it has, from the peer's offers;
// heard is false before the first one, and neighbours nil.
func (t *Target) Tenants() (out []netip.Addr, neighbours map[peer.ID]netip.Prefix, heard bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.latest.Tenants {
		if here, ok := t.Home(a); ok {
			out = append(out, here)
		}
	}
	if neighbours = t.latest.Neighbours; t.received && neighbours == nil {
		neighbours = map[peer.ID]netip.Prefix{} // JSON has no empty one
	}
	return out, neighbours, t.received
}

// PodPrefixes are the prefixes of pods in the peer's view: its own, home's, and those of its peers.
func (t *Target) PodPrefixes() []netip.Prefix {
	out := []netip.Prefix{t.cfg.Link.PeerCIDR, t.cfg.Link.LocalMappedCIDR}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.latest.Neighbours {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return out
}

// Changed returns a channel that gets a value after the result of Away or Lost may have changed, and the function that
// ends the subscription.
func (t *Target) Changed() (<-chan struct{}, func()) { return t.reach.Changed() }
