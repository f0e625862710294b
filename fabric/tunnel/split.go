package tunnel

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"rivulet/fabric/translate"
	"rivulet/fabric/wgkey"
)

// split removes from a configuration the peers that cannot be served beside earlier ones, with the reasons, so that the
// others are served. A key and a prefix belong to their first claimant. A peer whose endpoint would lead into the
// tunnel itself stays, without the endpoint.
func (c Config) split() (Config, map[string]Problem) {
	refused := map[string]Problem{}
	keys, ids := map[wgkey.Public]bool{}, map[string]bool{}
	own, all := c.PrivateKey.Public(), c.Peers
	c.Peers = nil
	for _, p := range all {
		switch why := c.unfit(p, own, keys); {
		case ids[p.ID]: // the first of that name is served
		case why != nil:
			refused[p.ID] = *why
		default:
			keys[p.PublicKey] = true
			c.Peers = append(c.Peers, p)
		}
		ids[p.ID] = true
	}
	inside := c.inside()
	for i := range c.Peers {
		p := &c.Peers[i]
		if at := inside(p.Endpoint.Addr()); at.IsValid() {
			refused[p.ID] = Problem{Partly: true, Text: fmt.Sprintf("its address %s is in %s, which is inside the tunnel", p.Endpoint.Addr(), at),
				Cure: "connect it to another network, or give the LAN another range"}
			p.Endpoint = netip.AddrPort{}
		}
	}
	return c, refused
}

// unfit is why a peer cannot be served beside c.Peers, nil if it can.
func (c Config) unfit(p Peer, own wgkey.Public, keys map[wgkey.Public]bool) *Problem {
	const another = "another prefix is agreed on in the next exchange; if it is not: rivulet unpeer --force it, and peer again"
	switch {
	case p.PublicKey.IsZero():
		return &Problem{Text: "it has no WireGuard key", Cure: "run rivulet rotate-key on it"}
	case p.PublicKey == own:
		return &Problem{Text: "it has the WireGuard key of this cluster", Cure: "run rivulet rotate-key on it"}
	case keys[p.PublicKey]:
		return &Problem{Text: "its WireGuard key is that of another peer", Cure: "run rivulet rotate-key on it"}
	}
	if _, err := translate.Compile([]translate.Rule{c.rule(p, 0)}, 0); err != nil {
		return &Problem{Text: err.Error(), Cure: another}
	}
	for _, q := range c.Peers {
		if q.PeerMappedCIDR.Overlaps(p.PeerMappedCIDR) {
			return &Problem{Text: fmt.Sprintf("%s, the prefix chosen for it, overlaps %s of another peer", p.PeerMappedCIDR, q.PeerMappedCIDR), Cure: another}
		}
	}
	return nil
}

// inside returns a function to the prefix of an address, if packets to it would go to own pods or into the tunnel
// itself. A network on a link of the host is a more specific route than the prefix around it: its hosts stay reachable
// while that peer's prefix is replaced.
func (c Config) inside() func(netip.Addr) netip.Prefix {
	links := hostLinks()
	return func(a netip.Addr) netip.Prefix {
		if a = a.Unmap(); c.PodCIDR.Contains(a) {
			return c.PodCIDR
		}
		for _, p := range c.Peers {
			if p.PeerMappedCIDR.Contains(a) && !slices.ContainsFunc(links, func(l netip.Prefix) bool { return l.Contains(a) && l.Bits() >= p.PeerMappedCIDR.Bits() }) {
				return p.PeerMappedCIDR
			}
		}
		return netip.Prefix{}
	}
}

// hostLinks are the networks on the links of this host.
func hostLinks() (out []netip.Prefix) {
	addrs, _ := net.InterfaceAddrs() // without them no address is on a link
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.IsSingleIP() {
			out = append(out, p)
		}
	}
	return out
}

// first returns the problem of a peer, of the first list that has one.
func first(id string, lists ...map[string]Problem) *Problem {
	for _, l := range lists {
		if p, ok := l[id]; ok {
			return &p
		}
	}
	return nil
}
