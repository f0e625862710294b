package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// EnsureNodeAddress puts the node's own address on lo, and a route for the
// service network beside it: without a default route the kernel would refuse a
// connection to a service before kube-proxy could redirect it.
func EnsureNodeAddress(addr netip.Addr, services netip.Prefix) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("host: lo: %w; run as root", err)
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}}
	if err := netlink.AddrReplace(lo, ip); err != nil {
		return fmt.Errorf("host: %s on lo: %w", addr, err)
	}
	route := &netlink.Route{
		LinkIndex: lo.Attrs().Index,
		Dst:       &net.IPNet{IP: services.Addr().AsSlice(), Mask: net.CIDRMask(services.Bits(), 32)},
		Src:       addr.AsSlice(),
		Scope:     netlink.SCOPE_LINK,
	}
	if err := netlink.RouteReplace(route); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("host: route to %s: %w", services, err)
	}
	return nil
}

// Routes returns the networks that the machine has a route for, in any of its
// tables: VPNs like to have their own. The default route is left out, also in two
// halves, and so are those through the named interface.
func Routes(except string) []netip.Prefix {
	var skip int
	if l, err := netlink.LinkByName(except); err == nil {
		skip = l.Attrs().Index
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Type: unix.RTN_UNICAST}, netlink.RT_FILTER_TYPE|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil
	}
	var out []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil || r.LinkIndex == skip || r.Table == unix.RT_TABLE_LOCAL {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP)
		addr = addr.Unmap()
		bits, _ := r.Dst.Mask.Size()
		widest := widestNetwork
		if addr.Is6() {
			widest = widestNetwork6
		}
		if ok && bits >= widest && !addr.IsMulticast() {
			out = append(out, netip.PrefixFrom(addr, bits))
		}
	}
	return out
}

// widestNetwork is that of 10.0.0.0/8, bits; what is wider leads to the Internet.
const widestNetwork = 8

// widestNetwork6 is what an Internet registry gives to one site at most, bits.
const widestNetwork6 = 16

// Leads reports whether packets to an address leave through one of the interfaces named;
// those to an address of the device itself do not.
func Leads(addr netip.Addr, interfaces ...string) bool {
	routes, err := netlink.RouteGet(addr.Unmap().AsSlice())
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		return false
	}
	for _, name := range interfaces {
		if l, err := netlink.LinkByName(name); err == nil && l.Attrs().Index == routes[0].LinkIndex {
			return true
		}
	}
	return false
}
