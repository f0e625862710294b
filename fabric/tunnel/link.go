package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// setLink gives the TUN its MTU, its one address and a route for each peer's
// prefix, and takes routes of peers that are gone.
func setLink(cfg Config, mtus map[string]int) error {
	link, err := netlink.LinkByName(cfg.Interface)
	if err != nil {
		return fmt.Errorf("tunnel: interface %s: %w", cfg.Interface, err)
	}
	if link.Attrs().MTU != cfg.MTU {
		if err := netlink.LinkSetMTU(link, cfg.MTU); err != nil {
			return fmt.Errorf("tunnel: MTU %d of %s: %w", cfg.MTU, cfg.Interface, err)
		}
	}
	setSysctls(cfg.Interface)
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(cfg.Address, 32))}); err != nil {
		return fmt.Errorf("tunnel: address %s: %w", cfg.Address, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("tunnel: bring %s up: %w", cfg.Interface, err)
	}
	return setRoutes(link.Attrs().Index, cfg, mtus)
}

// setSysctls makes the interface one that peers are behind and nobody else. What
// cannot be written is not there to hurt (no IPv6, a read-only /proc/sys of a
// container whose host has the default).
func setSysctls(name string) {
	for file, value := range map[string]string{
		"ipv4/conf/" + name + "/rp_filter":        "2", // loose, where the host is strict
		"ipv4/conf/" + name + "/accept_redirects": "0",
		"ipv4/conf/" + name + "/send_redirects":   "0",
		"ipv6/conf/" + name + "/disable_ipv6":     "1", // or each start is a burst of dropped packets
	} {
		_ = os.WriteFile("/proc/sys/net/"+file, []byte(value), 0o644)
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
func setRoutes(index int, cfg Config, mtus map[string]int) error {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("tunnel: list routes: %w", err)
	}
	want := map[netip.Prefix]string{}
	for _, p := range cfg.Peers {
		want[p.Remote.Masked()] = p.ID
	}
	var failed []error
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
				failed = append(failed, fmt.Errorf("tunnel: remove route %s: %w", dst, err))
			}
		case wanted:
			there[dst] = true
			failed = append(failed, fmt.Errorf("tunnel: %s, the prefix chosen for peer %s, is a network of this host: choose another prefix", dst, id))
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
			failed = append(failed, fmt.Errorf("tunnel: route %s of peer %s: %w", dst, id, err))
		}
	}
	return errors.Join(failed...)
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

// settle is how long the host's addresses must be quiet before it has moved: DHCP
// takes an address, gives another and sets routes, one after the other.
const settle = 150 * time.Millisecond

// hostMoves sends a value after changes of the host's own addresses or its default
// route, until ctx ends. Those of containers (link-local ones) do not count.
func hostMoves(ctx context.Context) (<-chan struct{}, error) {
	addrs, routes := make(chan netlink.AddrUpdate, 16), make(chan netlink.RouteUpdate, 16)
	done := make(chan struct{})
	if err := netlink.AddrSubscribe(addrs, done); err != nil {
		return nil, fmt.Errorf("tunnel: watch addresses: %w", err)
	}
	if err := netlink.RouteSubscribe(routes, done); err != nil {
		close(done)
		return nil, fmt.Errorf("tunnel: watch routes: %w", err)
	}
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		defer close(done)
		quiet := time.NewTimer(settle)
		quiet.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case u, ok := <-addrs:
				if !ok {
					return
				}
				if u.LinkAddress.IP.IsGlobalUnicast() && u.Flags&unix.IFA_F_TENTATIVE == 0 {
					quiet.Reset(settle)
				}
			case u, ok := <-routes:
				if !ok {
					return
				}
				if u.Table == unix.RT_TABLE_MAIN && isDefault(u.Dst) {
					quiet.Reset(settle)
				}
			case <-quiet.C:
				select {
				case out <- struct{}{}:
				default:
				}
			}
		}
	}()
	return out, nil
}

func isDefault(dst *net.IPNet) bool {
	if dst == nil {
		return true
	}
	bits, _ := dst.Mask.Size()
	return bits == 0
}
