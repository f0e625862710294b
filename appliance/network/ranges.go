package network

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/state/identity"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
)

// How long the first start waits for a LAN address: with a connected cable, with Wi-Fi only, and for a cable to be
// connected. A device without a network is not delayed for longer.
const (
	awaitAddress = 15 * time.Second
	awaitCable   = 5 * time.Second
	checkAgain   = 100 * time.Millisecond
)

// UseRanges sets the cluster's networks in this process: for a new cluster, ones that are free here. The engine stores
// them when it creates the cluster.
func UseRanges(ctx context.Context, state string, log *slog.Logger) error {
	r, there, err := fixed.Of(state)
	if err != nil {
		return err
	}
	if !there {
		settle(ctx, time.Now(), lans)
		r = fixed.Free(slices.Concat(host.Routes("lo", fixed.Bridge, fixed.Tunnel), host.Servers("/")))
		log.Info("networks of the cluster chosen", "pods", r.Pods, "services", r.Services, "nodes", r.Nodes)
	}
	fixed.Use(r)
	return nil
}

// NodeAddress is the permanent address of the cluster's first node.
func NodeAddress(id peer.ID) netip.Addr { return identity.NodeAddress(id, fixed.NodeRange) }

// VirtualAddresses are those of virtual nodes, of the same range.
func VirtualAddresses(id peer.ID) *host.Further {
	return &host.Further{Nodes: fixed.NodeRange, Own: NodeAddress(id)}
}

// lan is a link that leads to a LAN.
type lan struct{ cable, address, wireless bool }

func lans() (out []lan) {
	links, err := netmon.Dump(netlink.LinkList)
	if err != nil {
		return nil
	}
	for _, l := range links {
		a := l.Attrs()
		if !netmon.MayBeLAN(l, links) {
			continue
		}
		addrs, err := netmon.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_V4) })
		has := err == nil && slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.IsGlobalUnicast() })
		_, noRadio := os.Stat("/sys/class/net/" + a.Name + "/phy80211")
		out = append(out, lan{wireless: noRadio == nil, address: has, cable: a.Flags&net.FlagUp != 0 && a.RawFlags&unix.IFF_RUNNING != 0})
	}
	return out
}

// settle returns when each link with a cable has an address, or after the time limit.
func settle(ctx context.Context, begun time.Time, look func() []lan) {
	for ctx.Err() == nil {
		all := look()
		limit := time.Duration(0)
		alone := !slices.ContainsFunc(all, func(l lan) bool { return l.address })
		if alone && len(all) > 0 {
			limit = awaitCable
		}
		if slices.ContainsFunc(all, func(l lan) bool { return !l.address && (l.cable || l.wireless && alone) }) {
			limit = awaitAddress
		}
		if time.Since(begun) >= limit {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(checkAgain):
		}
	}
}
