package host

import (
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// EnsureNodeAddress adds the node's address to lo, and a route for the service network: without a default route the
// kernel would refuse a connection to a Service before kube-proxy could redirect it. It writes only what is missing,
// and returns that.
func EnsureNodeAddress(addr netip.Addr, services netip.Prefix) (missing []string, err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	if lo.Attrs().Flags&net.FlagUp == 0 {
		missing = append(missing, "lo up")
		if err := netlink.LinkSetUp(lo); err != nil {
			return nil, fmt.Errorf("host: lo: %w; run as root", err)
		}
	}
	own, err := ensureAddresses(lo, slices.Values([]netip.Addr{addr}))
	if err != nil {
		return nil, err
	}
	missing = append(missing, own...)
	route := &netlink.Route{
		LinkIndex: lo.Attrs().Index,
		Dst:       &net.IPNet{IP: services.Addr().AsSlice(), Mask: net.CIDRMask(services.Bits(), 32)},
		Src:       addr.AsSlice(),
		Scope:     netlink.SCOPE_LINK,
	}
	added, err := ensureRoute(lo, route)
	return append(missing, added...), err
}

// DropNodeAddress removes an address that EnsureNodeAddress has added; a missing one is no error.
func DropNodeAddress(addr netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.AddrDel(lo, single(addr))
	}
	if err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("host: %s on lo: %w", addr, err)
	}
	return nil
}

// ensureAddresses adds missing addresses to lo.
func ensureAddresses(lo netlink.Link, all iter.Seq[netip.Addr]) (missing []string, err error) {
	have, err := netlink.AddrList(lo, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("host: addresses of lo: %w", err)
	}
	for addr := range all {
		one := single(addr)
		if slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IPNet.String() == one.IPNet.String() }) {
			continue
		}
		missing = append(missing, "address "+one.IPNet.String())
		if e := netlink.AddrReplace(lo, one); e != nil {
			err = errors.Join(err, fmt.Errorf("host: %s on lo: %w", addr, e))
		}
	}
	return missing, err
}

// ensureBridgeRoutes adds the routes that the kernel creates for the bridge's addresses.
func ensureBridgeRoutes(name string) (missing []string, err error) {
	bridge, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil // it is created with the first pod
	}
	if err != nil {
		return nil, fmt.Errorf("host: interface %s: %w", name, err)
	}
	if bridge.Attrs().Flags&net.FlagUp == 0 {
		return nil, nil
	}
	addrs, err := netlink.AddrList(bridge, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("host: addresses of %s: %w", name, err)
	}
	for _, a := range addrs {
		if bits, _ := a.Mask.Size(); bits == 32 {
			continue
		}
		added, e := ensureRoute(bridge, &netlink.Route{LinkIndex: bridge.Attrs().Index, Dst: &net.IPNet{IP: a.IP.Mask(a.Mask), Mask: a.Mask},
			Src: a.IP, Scope: netlink.SCOPE_LINK, Protocol: unix.RTPROT_KERNEL})
		missing, err = append(missing, added...), errors.Join(err, e)
	}
	return missing, err
}

func ensureRoute(link netlink.Link, route *netlink.Route) (missing []string, err error) {
	there, err := netlink.RouteListFiltered(netlink.FAMILY_V4, route, netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST|netlink.RT_FILTER_SRC)
	if err != nil || len(there) > 0 {
		return nil, err
	}
	if err := netlink.RouteReplace(route); err != nil && !errors.Is(err, syscall.EEXIST) {
		return nil, fmt.Errorf("host: route to %s by %s: %w", route.Dst, link.Attrs().Name, err)
	}
	return []string{"route to " + route.Dst.String()}, nil
}

// Routes returns the networks with a route in any table: VPNs often have their own. It leaves out the default route,
// also in two halves, and routes through the named interfaces.
func Routes(except ...string) []netip.Prefix {
	skip := map[int]bool{}
	for _, name := range except {
		if l, err := netlink.LinkByName(name); err == nil {
			skip[l.Attrs().Index] = true
		}
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Type: unix.RTN_UNICAST}, netlink.RT_FILTER_TYPE|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil
	}
	var out []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil || skip[r.LinkIndex] || r.Table == unix.RT_TABLE_LOCAL {
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

// widestNetwork is the prefix length of 10.0.0.0/8; wider routes lead to the Internet.
const widestNetwork = 8

// widestNetwork6 is the prefix length of the largest IPv6 allocation to one site.
const widestNetwork6 = 16

// Leads reports whether packets to an address leave through one of the named interfaces; false for the device's own
// addresses.
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
