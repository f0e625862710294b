// Package isolation keeps pods that run here for other clusters apart: from this cluster's own pods, from the host and
// its networks, and from pods of other clusters (docs/design/tenancy.md). The engine's NetworkPolicy controller cannot
// do that: a consumer may bring NetworkPolicies of its own, which can only add to what is allowed. It reads CNI
// results, namespaces with their consumers, the links, and package elsewhere. It alone writes the nftables tables
// "rivulet-twins", which decide by address, and on the bridge by sender. Restart: the tables stay, and are restored at
// once when another program changes them (nft.Keeper). It fails closed: a tenant's network is not finished before Hold
// has returned; problems are those of the part "isolation of guests".
package isolation

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/podnet"
)

// checkEvery is how often networks of the host that have come are seen, and what has failed is
// tried again.
const checkEvery = 15 * time.Second

// Config is what isolation goes by. All fields but Doors, API and Services are required.
type Config struct {
	// Held are the guests that are known.
	Held *Held
	// Results is the folder of CNI results.
	Results string
	// Pods is this cluster's pod CIDR.
	Pods netip.Prefix
	// DNS is the cluster IP of cluster DNS.
	DNS netip.Addr
	// Twins gives the consumer of each twin namespace.
	Twins func() map[string]peer.ID
	// Endpoints gives the addresses of a consumer's pods on other peers, always in the
	// same order.
	Endpoints func(peer.ID) iter.Seq[netip.Addr]
	// Services gives the cluster IPs here of a consumer's Services, of a bounded number: where
	// such a one has no endpoint connections are refused, as they are at home. Nil is none.
	Services func(peer.ID) iter.Seq[netip.Addr]
	// API gives where a consumer on this host has its API server; nil is nowhere. An address
	// that is not valid is none.
	API func(peer.ID) netip.AddrPort
	// LAN gives the node ports by which the LAN reaches a consumer's guests, in order; nil is none.
	LAN func(peer.ID) []Port
	// Doors are namespaces of this cluster whose pods, controllers of ingress classes that
	// are lent, may open connections to guests; nil is none.
	Doors func() []string
	// Links are the peers.
	Links func() []peer.Link
	// Networks are the host's own, beside the private ones that are closed anyway.
	Networks func() []netip.Prefix
	// Changed gets a value when any of these may have changed.
	Changed <-chan struct{}
	// Report is told after each pass: why guests are not isolated, nil is well, and which
	// consumers' pods reach less than they should.
	Report func(err error, less map[peer.ID]error)
	Log    *slog.Logger
	// Guard sees what others do to the tables.
	Guard *nft.Guard

	bridged func() bool // for tests
}

// Run keeps the tables until ctx ends, and leaves them.
func Run(ctx context.Context, cfg Config) error {
	if cfg.bridged == nil {
		cfg.bridged = podnet.Bridged
	}
	files, err := podnet.NewWatch(cfg.Results)
	if err != nil {
		return fmt.Errorf("isolation: %w", err)
	}
	defer files.Close()
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	k := guard{Config: cfg, tables: newTables(cfg.Guard)}
	for {
		files.Check()
		begun := time.Now()
		waiting := cfg.Held.waiting()
		less, err := k.pass()
		cfg.Held.answer(waiting, err)
		cfg.Report(err, less)
		// Changes gather after a pass that took long, but for pods that wait.
		rest := time.After(min(4*time.Since(begun), 2*time.Second))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-cfg.Held.requested:
			continue
		case <-k.tables.Changed():
			continue
		case <-rest:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-cfg.Held.requested:
		case <-k.tables.Changed():
		case <-cfg.Changed:
		case _, ok := <-files.Events():
			if !ok {
				return errors.New("isolation: the watch of CNI results has ended")
			}
		case <-files.Errors():
		case <-tick.C:
		}
	}
}

// guard is one run.
type guard struct {
	Config
	tables *tables
	last   world
	lost   map[peer.ID]error
}

// pass makes the tables what they should be.
func (k *guard) pass() (less map[peer.ID]error, err error) {
	now, less, err := k.gather()
	if err != nil {
		return nil, err
	}
	some := len(now.Guests) > 0
	if known := k.tables.Known(); !known || len(k.lost) > 0 || !reflect.DeepEqual(k.last, now) {
		open := k.tables.Broken() || !known && !k.tables.there()
		k.lost, err = k.tables.build(now)
		if err == nil && some && open {
			err = k.cut(now)
		}
		if err == nil {
			err = k.cutPorts(k.last, now)
		}
		if err != nil {
			k.tables.Forget()
			return nil, err
		}
		k.last = now
		k.Held.mark(now.Guests)
		k.Log.Debug("guests are isolated", "guests", len(now.Guests), "consumers", len(now.Consumers))
	}
	if some && !k.bridged() {
		return less, errors.New("isolation: the kernel shows no packets between pods of this device to the rules; modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1")
	}
	maps.Copy(less, k.lost)
	return less, nil
}

// cut ends what guests have under way: where the tables were missing it was let through
// by nobody. What is allowed goes on with its next packet.
func (k *guard) cut(w world) error {
	flows := flowsOf{}
	for _, g := range w.Guests {
		flows[g.Addr] = true
	}
	return k.end(flows)
}

// cutPorts ends what came by node ports that are closed now.
func (k *guard) cutPorts(before, now world) error {
	closed := flowsBy{}
	for _, c := range before.Consumers {
		for _, p := range c.LAN {
			closed[p] = true
		}
	}
	for _, c := range now.Consumers {
		for _, p := range c.LAN {
			delete(closed, p)
		}
	}
	if len(closed) == 0 {
		return nil
	}
	return k.end(closed)
}

// end ends the connections.
func (k *guard) end(flows netlink.CustomConntrackFilter) error {
	at := netns.None()
	if k.tables.NetNS != 0 {
		at = netns.NsHandle(k.tables.NetNS)
	}
	h, err := netlink.NewHandleAt(at, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("isolation: connection tracking: %w; see rivulet doctor kernel", err)
	}
	defer h.Close()
	if _, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, flows); err != nil {
		return fmt.Errorf("isolation: connection tracking: %w; see rivulet doctor kernel", err)
	}
	return nil
}

// flowsOf matches connections to and from addresses.
type flowsOf map[netip.Addr]bool

func (f flowsOf) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	for _, ip := range []net.IP{flow.Forward.SrcIP, flow.Forward.DstIP, flow.Reverse.SrcIP} {
		if a, ok := netip.AddrFromSlice(ip.To4()); ok && f[a] {
			return true
		}
	}
	return false
}

// Port is a node port.
type Port struct {
	Protocol byte // unix.IPPROTO_*
	Number   uint16
}

// flowsBy matches connections that somebody has led on from node ports.
type flowsBy map[Port]bool

func (f flowsBy) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	return f[Port{flow.Forward.Protocol, flow.Forward.DstPort}] && !flow.Forward.DstIP.Equal(flow.Reverse.SrcIP)
}
