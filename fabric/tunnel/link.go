package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// setLink gives the TUN its MTU, its one address and a route for each peer's
// prefix, and takes routes of peers that are gone.
func setLink(cfg Config) error {
	link, err := netlink.LinkByName(cfg.Interface)
	if err != nil {
		return fmt.Errorf("tunnel: interface %s: %w", cfg.Interface, err)
	}
	if link.Attrs().MTU != cfg.MTU {
		if err := netlink.LinkSetMTU(link, cfg.MTU); err != nil {
			return fmt.Errorf("tunnel: MTU %d of %s: %w", cfg.MTU, cfg.Interface, err)
		}
	}
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(cfg.Address, 32))}); err != nil {
		return fmt.Errorf("tunnel: address %s: %w", cfg.Address, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("tunnel: bring %s up: %w", cfg.Interface, err)
	}
	// Packets of peers come in here and nowhere else; where the host checks return
	// paths strictly, loose is enough. No such file, no such check.
	_ = os.WriteFile("/proc/sys/net/ipv4/conf/"+cfg.Interface+"/rp_filter", []byte("2"), 0o644)

	want := map[netip.Prefix]bool{}
	for _, p := range cfg.Peers {
		dst := p.Remote.Masked()
		want[dst] = true
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(dst), Src: cfg.Address.AsSlice(), Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("tunnel: route %s of peer %s: %w", dst, p.ID, err)
		}
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: link.Attrs().Index}, netlink.RT_FILTER_OIF)
	if err != nil {
		return fmt.Errorf("tunnel: list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		a, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		if dst := netip.PrefixFrom(a, bits); ok && !want[dst] {
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("tunnel: remove route %s: %w", dst, err)
			}
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

// addressChanges sends a value after each change of an address of the host,
// until ctx ends.
func addressChanges(ctx context.Context) (<-chan struct{}, error) {
	updates := make(chan netlink.AddrUpdate, 16)
	done := make(chan struct{})
	if err := netlink.AddrSubscribe(updates, done); err != nil {
		return nil, fmt.Errorf("tunnel: watch addresses: %w", err)
	}
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case u, ok := <-updates:
				if !ok {
					return
				}
				if u.LinkAddress.IP.IsLoopback() || u.Flags&unix.IFA_F_TENTATIVE != 0 {
					continue
				}
				select {
				case out <- struct{}{}:
				default:
				}
			}
		}
	}()
	return out, nil
}
