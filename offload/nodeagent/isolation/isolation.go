// Package isolation separates the pods that run here for each other cluster from this cluster's own pods, from the host
// and its networks, and from the pods of further clusters (docs/design/tenancy.md). The engine's NetworkPolicy
// controller cannot: a consumer may have NetworkPolicies of its own, and these only add to what is allowed. It reads
// CNI results, namespaces with their consumers, the links, and package elsewhere. It alone writes the nftables tables
// "rivulet-twins", which filter by address, and on the bridge by sender. Restart: the tables stay, and are restored at
// once when another program changes them (nft.Keeper). Failure: closed, since a tenant's network is not completed
// before Hold has returned; problems are those of the part "isolation of tenants".
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

// checkEvery is the interval in which new networks of the host are detected, and failures retried.
const checkEvery = 15 * time.Second

// Config are the inputs of isolation. All fields but Ingress, Controllers, API, Others, Server and Services are required.
type Config struct {
	// Held are the tenants.
	Held *Held
	// Results is the folder of CNI results.
	Results string
	// Pods is this cluster's pod CIDR.
	Pods netip.Prefix
	// DNS is the cluster IP of cluster DNS.
	DNS netip.Addr
	// Twins returns the consumer of each twin namespace.
	Twins func() map[string]peer.ID
	// Endpoints returns the addresses of a consumer's pods on other peers, always in the same order.
	Endpoints func(peer.ID) iter.Seq[netip.Addr]
	// Others returns the addresses of a consumer's pods on other nodes of this cluster, sorted; nil is none. They are the
	// server's word.
	Others func(peer.ID) []netip.Addr
	// Server is the node with the API server, if that is another one: its controllers and node ports reach tenants here
	// as this host does. Not valid is none.
	Server netip.Addr
	// Services returns the cluster IPs here of a consumer's Services, of a bounded number: without an endpoint,
	// connections to them are refused, as at home. Nil is none.
	Services func(peer.ID) iter.Seq[netip.Addr]
	// API returns the address of a consumer's API server on this host; not valid, or nil, is none.
	API func(peer.ID) netip.AddrPort
	// LAN returns the node ports by which the LAN reaches a consumer's tenants, sorted; nil is none.
	LAN func(peer.ID) []Port
	// Ingress are the namespaces of this cluster with controllers of lent ingress classes. Their pods may connect to tenants.
	// Nil is none.
	Ingress func() []string
	// Controllers are the addresses of such pods on all nodes, by their statuses; nil is none. One that is an address of
	// this node counts only by Ingress.
	Controllers func() []netip.Addr
	// Links are the peers.
	Links func() []peer.Link
	// Networks are the host's own, in addition to the private ones, which are always closed.
	Networks func() []netip.Prefix
	// Changed gets a value when any of these may have changed.
	Changed <-chan struct{}
	// Report is called after each pass: why tenants are not isolated (nil: they are), and which consumers' pods reach
	// less than they should.
	Report func(err error, less map[peer.ID]error)
	Log    *slog.Logger
	// Guard detects changes of the tables by other programs.
	Guard *nft.Guard

	bridged func() bool // for tests
}

// Run maintains the tables until ctx ends; the tables stay.
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
		// Changes are collected after a pass that took long, except for pods that wait.
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

// pass updates the tables.
func (k *guard) pass() (less map[peer.ID]error, err error) {
	now, less, err := k.gather()
	if err != nil {
		return nil, err
	}
	some := len(now.Tenants) > 0
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
		k.Held.mark(now.Tenants)
		k.Log.Debug("tenants are isolated", "tenants", len(now.Tenants), "consumers", len(now.Consumers))
	}
	if some && !k.bridged() {
		return less, errors.New("isolation: the kernel shows no packets between pods of this device to the rules; modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1")
	}
	maps.Copy(less, k.lost)
	return less, nil
}

// cut ends the tenants' connections: while the tables were missing nothing filtered them. Allowed ones continue with
// their next packet.
func (k *guard) cut(w world) error {
	flows := flowsOf{}
	for _, g := range w.Tenants {
		flows[g.Addr] = true
	}
	return k.end(flows)
}

// cutPorts ends connections by node ports that are closed now.
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

// flowsBy matches connections that were forwarded from node ports.
type flowsBy map[Port]bool

func (f flowsBy) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	return f[Port{flow.Forward.Protocol, flow.Forward.DstPort}] && !flow.Forward.DstIP.Equal(flow.Reverse.SrcIP)
}
