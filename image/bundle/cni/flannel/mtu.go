package flannel

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/vishvananda/netlink"

	"rivulet/fabric/netmon"
	"rivulet/offload/nodeagent/podnet"
)

// What a pod's MTU may be, bytes: less than smallestPodMTU is no IPv6 link, more
// than largestPodMTU no Ethernet one.
const (
	smallestPodMTU = 1280
	largestPodMTU  = 9000
)

// defaultBridge is the bridge plugin's.
const defaultBridge = "cni0"

// linkMTU is what fits through the narrowest of the node's links: the same that the
// fabric takes for the tunnel. All pods of a node have the same MTU, because on
// their bridge nobody tells a sender that its packets are too long; so while there
// are pods, the bridge decides. Links that become narrower later are found by path
// MTU discovery: the node itself is then the router that tells the pods.
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
