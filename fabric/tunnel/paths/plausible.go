package paths

import (
	"net/netip"
	"slices"
)

// A peer tells where it may be, and may lie: an address of our site that lets this
// device in because of where it stands. So what it tells is tried only as far as a
// peer can be there.
//
//	UDP   any unicast address that is not of this machine or link alone, and no port that
//	      belongs to a service: a sealed ping, that nothing but a peer answers
//	TCP   only where it is as we know it (the supervisor's word, an address from which
//	      it has answered), or on the Internet

// notPublic are unicast addresses that are no part of the Internet, beside what netip
// calls private.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("fec0::/10"),
}

// noHost are addresses that no host of a site or of the Internet has.
var noHost = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("240.0.0.0/4")}

// plausible reports whether a peer may be at the address that it tells for UDP.
func plausible(a netip.AddrPort) bool {
	ip := a.Addr().Unmap()
	return ip.IsGlobalUnicast() && !slices.ContainsFunc(noHost, func(p netip.Prefix) bool { return p.Contains(ip) }) && openPort(a.Port())
}

// openPort reports whether a port can be that of a tunnel: those below 1024 belong to
// services, but for that of the web, where streams are let pass.
func openPort(port uint16) bool { return port >= 1024 || port == 443 }

// public reports whether an address is on the Internet.
func public(ip netip.Addr) bool {
	ip = ip.Unmap()
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !slices.ContainsFunc(notPublic, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// mayDial reports whether a stream may be tried to an address that the peer tells.
func (p *peer) mayDial(a netip.AddrPort) bool {
	ip := a.Addr().Unmap()
	for _, known := range p.tcp {
		if known.Addr().Unmap() == ip {
			return true
		}
	}
	for _, w := range p.paths {
		if w.kind == Direct && w.addr.Addr() == ip && (w.source == configured || !w.proved.IsZero()) {
			return true
		}
	}
	return public(ip) && openPort(a.Port())
}
