package paths

import (
	"net"
	"net/netip"
	"slices"

	"rivulet/fabric/ipam"
)

// A peer's advertised addresses may be false: an address of this site that trusts this device for its position. So an
// advertised address is tried only where a peer can be:
//
// 	UDP   any unicast address, except of this machine or link alone, and no port of a
// 	      system service: a sealed ping, which only a peer answers
// 	TCP   only at a known address (configured, or one from which it has answered), or on
// 	      the Internet and in no network of this machine

// noHost are addresses that no host of a site or of the Internet has.
var noHost = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("240.0.0.0/4")}

// plausible reports whether a peer may be at the address that it advertises for UDP.
func plausible(a netip.AddrPort) bool {
	ip := a.Addr().Unmap()
	return ip.IsGlobalUnicast() && !slices.ContainsFunc(noHost, func(p netip.Prefix) bool { return p.Contains(ip) }) && openPort(a.Port())
}

// openPort reports whether a tunnel may use the port. Those below 1024 belong to services, except that of HTTPS, where
// firewalls pass streams.
func openPort(port uint16) bool { return port >= 1024 || port == 443 }

// ownNetworks are the networks of this machine's addresses.
func ownNetworks() (own []netip.Prefix) {
	addrs, _ := net.InterfaceAddrs() // without addresses nothing can be dialled either
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p)
		}
	}
	return own
}

// mayDial reports whether a stream may be tried to an address that the peer advertises.
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
	return Public(a)
}

// Public reports whether a stranger's word is enough to open a connection to the address: it is on the Internet and in no
// network of this machine, and its port is not one of a system service.
func Public(a netip.AddrPort) bool {
	return ipam.Public(a.Addr().Unmap(), ownNetworks()...) && openPort(a.Port())
}
