package paths

import (
	"net"
	"net/netip"
	"slices"

	"rivulet/fabric/ipam"
)

// A peer tells where it may be, and may lie: an address of our site that lets this
// device in because of where it stands. So what it tells is tried only as far as a
// peer can be there.
//
//	UDP   any unicast address that is not of this machine or link alone, and no port that
//	      belongs to a service: a sealed ping, that nothing but a peer answers
//	TCP   only where it is as we know it (the supervisor's word, an address from which
//	      it has answered), or on the Internet and in no network of this machine

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

// ownNetworks are those that this machine has an address in.
func ownNetworks() (own []netip.Prefix) {
	addrs, _ := net.InterfaceAddrs() // without any there is nobody to dial either
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p)
		}
	}
	return own
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
	return ipam.Public(ip, ownNetworks()...) && openPort(a.Port())
}
