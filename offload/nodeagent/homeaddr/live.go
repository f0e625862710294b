package homeaddr

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"rivulet/offload/nodeagent/resets"
)

// inside is the pod's interface in its namespace.
const inside = "eth0"

// live makes own the only address of the pod's interface, and the node its gateway to all others: no local address has
// a meaning in the pod except as the next hop.
func live(ns *os.File, own netip.Addr, log *slog.Logger) error {
	if err := tryLive(ns, own, log); err != nil {
		return fmt.Errorf("homeaddr: the address %s of the pod at home: %w; see rivulet doctor kernel", own, err)
	}
	return nil
}

func tryLive(ns *os.File, own netip.Addr, log *slog.Logger) error {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	eth, err := h.LinkByName(inside)
	if err != nil {
		return err
	}
	addrs, err := h.AddrList(eth, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	at := &netlink.Addr{IPNet: host(own)}
	if len(addrs) == 1 && addrs[0].IPNet.String() == at.IPNet.String() {
		return nil
	}
	routes, err := h.RouteList(eth, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	all := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	every := func(r netlink.Route) bool { return r.Dst == nil || r.Dst.String() == all.String() }
	way := netlink.Route{LinkIndex: eth.Attrs().Index, Dst: all, Src: at.IP, Flags: int(netlink.FLAG_ONLINK)}
	for _, r := range routes {
		if every(r) {
			way.Gw, way.MTU, way.Priority = r.Gw, r.MTU, r.Priority
		}
	}
	if way.Gw == nil {
		return errors.New("the pod has no route to its node")
	}
	if err := h.AddrReplace(eth, at); err != nil {
		return err
	}
	if err := h.RouteReplace(&way); err != nil {
		return err
	}
	for _, r := range routes {
		if !every(r) {
			if err := h.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	for _, a := range addrs {
		if a.IPNet.String() == at.IPNet.String() {
			continue
		}
		if err := h.AddrDel(eth, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return err
		}
		// Connections from the old address are dead: their programs get an error.
		was, _ := netip.AddrFromSlice(a.IP.To4())
		if _, err := resets.Sockets(netns.NsHandle(ns.Fd()), func(local, _ netip.AddrPort) bool { return local.Addr() == was }); err != nil {
			log.Warn("connections of a pod's former address go on to wait", "address", was, "err", err)
		}
	}
	return nil
}

func host(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}
}
