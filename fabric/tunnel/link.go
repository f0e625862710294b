package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/fabric/sysctl"
)

// setLink gives the TUN its MTU, its one address and a route for each peer's
// prefix, and takes routes of peers that are gone. It returns the peers whose prefix
// has no route. What is there already it does not write, so that it may be called after
// each change.
func setLink(cfg Config, mtus map[string]int) (map[string]Problem, error) {
	link, err := netlink.LinkByName(cfg.Interface)
	if err != nil {
		return nil, fmt.Errorf("tunnel: interface %s: %w", cfg.Interface, err)
	}
	if link.Attrs().MTU != cfg.MTU {
		if err := netlink.LinkSetMTU(link, cfg.MTU); err != nil {
			return nil, fmt.Errorf("tunnel: MTU %d of %s: %w", cfg.MTU, cfg.Interface, err)
		}
	}
	// What cannot be written is not there to hurt: a read-only /proc/sys is that of a container
	// whose host has the default.
	_, _ = sysctl.Keep(settings(cfg.Interface)...)
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("tunnel: addresses of %s: %w", cfg.Interface, err)
	}
	own := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(cfg.Address, 32))}
	if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IPNet.String() == own.IPNet.String() }) {
		if err := netlink.AddrReplace(link, own); err != nil {
			return nil, fmt.Errorf("tunnel: address %s: %w", cfg.Address, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("tunnel: bring %s up: %w", cfg.Interface, err)
		}
	}
	return setRoutes(link.Attrs().Index, cfg, mtus)
}

// settings make the interface one that peers are behind and nobody else.
func settings(name string) []sysctl.Setting {
	return []sysctl.Setting{
		{Name: "net/ipv4/conf/" + name + "/rp_filter", Value: "2"}, // loose, where the host is strict
		{Name: "net/ipv4/conf/" + name + "/accept_redirects", Value: "0"},
		{Name: "net/ipv4/conf/" + name + "/send_redirects", Value: "0"},
		{Name: "net/ipv6/conf/" + name + "/disable_ipv6", Value: "1"}, // or each start is a burst of dropped packets
	}
}

// routeMetric is worse than that of routes which others make: a VPN that comes up
// with a peer's prefix gets its route, and the peer another prefix.
const routeMetric = 7442

// setRoutes adds the routes that are missing, and nothing that another interface
// has, and removes those of peers that are gone. A peer that cannot be served
// does not stand in the way of the others. A route carries the MTU of the path where
// that is less than the tunnel's: the kernel then tells pods what fits, and cuts
// what may be cut, before it is encrypted.
func setRoutes(index int, cfg Config, mtus map[string]int) (map[string]Problem, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("tunnel: list routes: %w", err)
	}
	want := map[netip.Prefix]string{}
	for _, p := range cfg.Peers {
		want[p.PeerMappedCIDR.Masked()] = p.ID
	}
	failed := map[string]Problem{}
	there, ours := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, r := range routes {
		if r.Dst == nil || len(r.MultiPath) > 0 {
			continue
		}
		a, _ := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		dst := netip.PrefixFrom(a, bits)
		id, wanted := want[dst]
		switch {
		case r.LinkIndex == index && wanted && r.Priority == routeMetric && r.Src.Equal(cfg.Address.AsSlice()) && r.MTU == cfg.routeMTU(id, mtus):
			there[dst] = true
		case r.LinkIndex == index && wanted && r.Priority == routeMetric:
			ours[dst] = true
		case r.LinkIndex == index:
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) {
				return nil, fmt.Errorf("tunnel: remove route %s: %w", dst, err)
			}
		case wanted:
			there[dst] = true
			failed[id] = Problem{Text: fmt.Sprintf("%s, the prefix chosen for it, is a network of this host", dst),
				Cure: "another prefix is agreed on as soon as it is reached on the LAN; until then remove that route"}
		}
	}
	for dst, id := range want {
		if there[dst] {
			continue
		}
		set := netlink.RouteAdd
		if ours[dst] {
			set = netlink.RouteReplace // without a gap
		}
		if err := set(&netlink.Route{LinkIndex: index, Dst: ipNet(dst), Src: cfg.Address.AsSlice(), Scope: netlink.SCOPE_LINK,
			Priority: routeMetric, MTU: cfg.routeMTU(id, mtus)}); err != nil {
			failed[id] = Problem{Text: fmt.Sprintf("no route to %s, the prefix chosen for it: %v", dst, err), Cure: "look at the routes of this device (ip route)"}
		}
	}
	return failed, nil
}

// removeStale removes a TUN that somebody made to stay, so that ours can take its name.
func removeStale(name string) bool {
	link, err := netlink.LinkByName(name)
	if err != nil || link.Type() != "tuntap" && link.Type() != "tun" {
		return false
	}
	return netlink.LinkDel(link) == nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}
