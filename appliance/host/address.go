package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
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

// Routes returns the destinations that the machine has a route for, the default
// route and those through the named interface left out.
func Routes(except string) []netip.Prefix {
	var skip int
	if l, err := netlink.LinkByName(except); err == nil {
		skip = l.Attrs().Index
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil
	}
	var out []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil || r.LinkIndex == skip {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		if ok && bits > 0 {
			out = append(out, netip.PrefixFrom(addr, bits))
		}
	}
	return out
}
