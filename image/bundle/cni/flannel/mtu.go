package flannel

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/fabric/netmon"
	"rivulet/offload/nodeagent/podnet"
)

// Bounds of a pod's MTU, bytes: the minimum of IPv6, and the maximum of Ethernet.
const (
	smallestPodMTU = 1280
	largestPodMTU  = 9000
)

// defaultBridge is the default of the bridge plugin.
const defaultBridge = "cni0"

// tunnel is the interface by which a worker reaches the pods of other nodes: its route is to all of the pod network.
const tunnel = "riv0"

// linkMTU is the MTU of the narrowest link of the node; the fabric uses the same for the tunnel. All pods of a node
// have the same MTU, because a bridge does not report to a sender that its packets are too long: while there are pods,
// the bridge's MTU counts. If a link becomes narrower later, path MTU discovery finds it, because the node is then the
// router that reports it.
func linkMTU(bridge string) (int, error) {
	mtu := min(max(netmon.New(slog.New(slog.DiscardHandler)).LANs().MTU(), smallestPodMTU), largestPodMTU)
	br, err := netlink.LinkByName(bridge)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return mtu, nil
	}
	if err != nil {
		return 0, fmt.Errorf("flannel: %s: %w", bridge, err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return 0, fmt.Errorf("flannel: list links: %w", err)
	}
	for _, l := range links {
		if l.Attrs().MasterIndex == br.Attrs().Index && !strings.HasPrefix(l.Attrs().Name, podnet.NoPod) {
			return br.Attrs().MTU, nil
		}
	}
	if br.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(br, mtu); err != nil {
			return 0, fmt.Errorf("flannel: MTU of %s: %w", bridge, err)
		}
	}
	return mtu, nil
}

// apart returns an error if a network of the node overlaps with that of its pods: the bridge would take over the route
// to that network, perhaps one of its addresses, and cut the node off.
func (l lease) apart(bridge string) error {
	own := map[int]bool{}
	for _, name := range []string{bridge, tunnel} {
		if l, err := netlink.LinkByName(name); err == nil {
			own[l.Attrs().Index] = true
		}
	}
	routes, err := netmon.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("flannel: list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil || own[r.LinkIndex] || r.Scope != netlink.SCOPE_LINK {
			continue
		}
		a, _ := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		for _, subnet := range l.subnets {
			if to := netip.PrefixFrom(a, bits); to.Overlaps(subnet) {
				return fmt.Errorf("flannel: this device is on a network %s, and its pods have %s: give that network another range, or have this device choose another for its pods: rivulet doctor --only cidr", to, subnet.Masked())
			}
		}
	}
	return nil
}
