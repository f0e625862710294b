package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/fabric/sysctl"
)

// setLink sets the TUN's MTU, its one address and a route for each peer's prefix, and removes routes of former peers.
// It returns the peers whose prefix has no route. It writes only what differs, so that it may be called after each
// change.
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
	// A setting that cannot be written does no harm: /proc/sys is read-only in a container, whose host has the default.
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

// persist has the interface stay, with its address and routes, when this process dies, until the next one takes it; or go
// with the process, which is how it begins. The kernel forgets connections that are masqueraded behind an interface with
// that: those of the LAN to a Service whose pods are at a peer. Packets meanwhile are lost, and none leaves another way.
func persist(f *os.File, stay bool) error {
	raw, err := f.SyscallConn() // Fd would make it block
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	value := 0
	if stay {
		value = 1
	}
	var refused error
	if err := raw.Control(func(fd uintptr) { refused = unix.IoctlSetInt(int(fd), unix.TUNSETPERSIST, value) }); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	return refused
}

// settings prepare the interface for peers alone.
func settings(name string) []sysctl.Setting {
	return []sysctl.Setting{
		{Name: "net/ipv4/conf/" + name + "/rp_filter", Value: "2"}, // loose, where the host is strict
		{Name: "net/ipv4/conf/" + name + "/accept_redirects", Value: "0"},
		{Name: "net/ipv4/conf/" + name + "/send_redirects", Value: "0"},
		{Name: "net/ipv6/conf/" + name + "/disable_ipv6", Value: "1"}, // otherwise each start sends packets that are dropped
	}
}

// routeMetric is worse than that of other programs' routes: a VPN with a peer's prefix gets its route, and the peer
// another prefix.
const routeMetric = 7442

// setRoutes adds missing routes, except those that another interface has, and removes those of former peers. The
// failure of one peer does not affect others. A route has the MTU of the path where that is less than the tunnel's: the
// kernel then reports the limit to pods, and fragments before encryption where that is permitted.
func setRoutes(index int, cfg Config, mtus map[string]int) (map[string]Problem, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("tunnel: list routes: %w", err)
	}
	type route struct {
		id  string
		src net.IP
	}
	want := map[netip.Prefix]route{}
	for _, p := range cfg.Peers {
		want[p.PeerMappedCIDR.Masked()] = route{p.ID, cfg.Address.AsSlice()}
		for _, prefix := range p.Behind {
			want[prefix.Masked()] = route{p.ID, cfg.Node.AsSlice()}
		}
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
		to, wanted := want[dst]
		switch {
		case r.LinkIndex == index && wanted && r.Priority == routeMetric && r.Src.Equal(to.src) && r.MTU == cfg.routeMTU(to.id, mtus):
			there[dst] = true
		case r.LinkIndex == index && wanted && r.Priority == routeMetric:
			ours[dst] = true
		case r.LinkIndex == index:
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) {
				return nil, fmt.Errorf("tunnel: remove route %s: %w", dst, err)
			}
		case wanted:
			there[dst] = true
			failed[to.id] = Problem{Text: fmt.Sprintf("%s, the prefix chosen for it, is a network of this host", dst),
				Cure: "another prefix is agreed on as soon as it is reached on the LAN; until then remove that route"}
		}
	}
	for dst, to := range want {
		if there[dst] {
			continue
		}
		set := netlink.RouteAdd
		if ours[dst] {
			set = netlink.RouteReplace // without a gap
		}
		if err := set(&netlink.Route{LinkIndex: index, Dst: ipNet(dst), Src: to.src, Scope: netlink.SCOPE_LINK,
			Priority: routeMetric, MTU: cfg.routeMTU(to.id, mtus)}); err != nil {
			failed[to.id] = Problem{Text: fmt.Sprintf("no route to %s, the prefix chosen for it: %v", dst, err), Cure: "look at the routes of this device (ip route)"}
		}
	}
	return failed, nil
}

// removeStale removes a persistent TUN of that name that no process uses.
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
