package netmon

import (
	"net"
	"net/netip"
	"path"
	"slices"

	"github.com/vishvananda/netlink"
)

// Interface is one interface that leads to a LAN.
type Interface struct {
	Index int
	Name  string
	MTU   int
	// Addrs are the interface's own addresses with the prefix of its link, temporary ones (RFC 8981) last.
	Addrs []netip.Prefix
	// further addresses are this device's, too, and nobody is to come by them: tentative ones, which the kernel may use a
	// moment before it reports them as ready, and deprecated ones.
	further []netip.Addr
}

// Has reports whether addr is one of the interface's own addresses.
func (i Interface) Has(addr netip.Addr) bool {
	addr = addr.WithZone("")
	return slices.Contains(i.further, addr) || slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr() == addr })
}

func (i Interface) Net() net.Interface {
	return net.Interface{Index: i.Index, Name: i.Name, MTU: i.MTU, Flags: net.FlagUp | net.FlagMulticast}
}

// same reports whether there is no change to report. A link-local IPv6 address beside others does not count; it comes
// seconds after them.
func (i Interface) same(o Interface) bool {
	return i.Index == o.Index && i.Name == o.Name && i.MTU == o.MTU && slices.Equal(i.advertised(), o.advertised())
}

func (i Interface) advertised() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range i.Addrs {
		if !p.Addr().Is6() || !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return i.Addrs
	}
	return out
}

// isLAN decides by flags, the user's patterns, and whether the link leads to a cable or a radio. A point-to-point device
// is a tunnel or a modem, whatever its kind: no other cluster is on its link.
func isLAN(name string, flags net.Flags, allowed []string, leads bool) bool {
	const want = net.FlagUp | net.FlagMulticast | net.FlagRunning
	if flags&want != want || flags&(net.FlagLoopback|net.FlagPointToPoint) != 0 {
		return false
	}
	if slices.Contains(allowed, name) {
		return true
	}
	if len(allowed) > 0 && !slices.ContainsFunc(allowed, func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok }) {
		return false
	}
	return leads
}

// LANs is a set of LAN interfaces at one moment.
type LANs []Interface

// Own reports whether addr is this device's own on a LAN.
func (l LANs) Own(addr netip.Addr) bool {
	return slices.ContainsFunc(l, func(i Interface) bool { return i.Has(addr.Unmap()) })
}

// OnLink reports whether addr belongs to another machine on a LAN of this device, without a router between them.
func (l LANs) OnLink(addr netip.Addr) bool {
	zone, addr := addr.Zone(), addr.Unmap().WithZone("")
	if !addr.IsValid() || addr.IsLoopback() || addr.IsMulticast() || addr.IsUnspecified() || l.Own(addr) {
		return false
	}
	for _, i := range l {
		if addr.Is6() && addr.IsLinkLocalUnicast() {
			if zone == i.Name {
				return true
			}
			continue
		}
		for _, p := range i.Addrs {
			if p.Contains(addr) && !p.IsSingleIP() {
				return true
			}
		}
	}
	return false
}

// MTU returns the smallest MTU of the LANs, or 1500 if there are none.
func (l LANs) MTU() int {
	mtu := 1500
	for n, i := range l {
		if n == 0 || i.MTU < mtu {
			mtu = i.MTU
		}
	}
	return mtu
}

// Prefixes returns the prefixes of the links.
func (l LANs) Prefixes() []netip.Prefix {
	var out []netip.Prefix
	for _, i := range l {
		for _, p := range i.Addrs {
			out = append(out, p.Masked())
		}
	}
	return out
}

func (l LANs) ByIndex(index int) (Interface, bool) {
	for _, i := range l {
		if i.Index == index {
			return i, true
		}
	}
	return Interface{}, false
}

// MayBeLAN reports whether an interface, one of all, leads to a LAN when it is up and its cable is plugged in.
func MayBeLAN(l netlink.Link, all []netlink.Link) bool {
	a := l.Attrs()
	return isLAN(a.Name, a.Flags|net.FlagUp|net.FlagRunning, nil, wiring(all).leads(l))
}
