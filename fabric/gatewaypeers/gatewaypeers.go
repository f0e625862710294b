// Package gatewaypeers has the gateways of clusters without Rivulet. A gateway pod (package gateway) is a peer of the
// tunnel only: it has no identity, no control port and no record.
//
// It reads the data plane's status for the path of a gateway. It writes nothing: the owner of a gateway registers it
// again in each run.
package gatewaypeers

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
)

// Config has what gateways need of the fabric. All fields are needed.
type Config struct {
	PodCIDR netip.Prefix
	// Choose returns a free prefix for the pods behind the gateway with the ID: previous if it is still free.
	Choose func(id peer.ID, previous netip.Prefix) (netip.Prefix, error)
	// Key is this cluster's public key, Addresses are the addresses of this device for UDP and for streams.
	Key       func() wgkey.Public
	Addresses func() (udp, streams []netip.AddrPort)
	// Status is that of the data plane.
	Status func(context.Context) (tunnel.Status, error)
	// HandOver gives the data plane a connection.
	HandOver func(net.Conn) error
	// Changed is called after each change of the gateways, without a lock.
	Changed func()
}

// Registry has the registered gateways. Its methods may be called concurrently; its lock is a leaf.
type Registry struct {
	cfg Config

	mu    sync.Mutex
	peers map[string]tunnel.Peer // by name
}

// New returns a registry without gateways.
func New(cfg Config) *Registry { return &Registry{cfg: cfg, peers: map[string]tunnel.Peer{}} }

// ID distinguishes gateways from clusters in the tunnel's configuration.
func ID(name string) string { return "gateway." + name }

// SetGateway makes the gateway of that name a peer of the tunnel, with its public key and the prefix under which this
// cluster sees the pods behind it. An invalid prefix or key removes it.
func (g *Registry) SetGateway(name, publicKey string, prefix netip.Prefix) {
	g.mu.Lock()
	if key, err := wgkey.Parse(publicKey); prefix.IsValid() && err == nil {
		g.peers[name] = tunnel.Peer{ID: ID(name), PublicKey: key, LocalMappedCIDR: g.cfg.PodCIDR, PeerMappedCIDR: prefix}
	} else {
		delete(g.peers, name)
	}
	g.mu.Unlock()
	g.cfg.Changed()
}

// Gateways are the prefixes of all gateways, in order. Fabric.Changed reports changes of them, too.
func (g *Registry) Gateways() []netip.Prefix {
	all := g.PrefixesBut("")
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// GatewayPrefix chooses a free prefix for the pods behind the gateway: the previous one if it is still free.
func (g *Registry) GatewayPrefix(name string, previous netip.Prefix) (netip.Prefix, error) {
	return g.cfg.Choose(peer.ID(ID(name)), previous)
}

// GatewayConfig is this cluster's part of a gateway's configuration.
func (g *Registry) GatewayConfig() (publicKey string, pods netip.Prefix, udp, streams []netip.AddrPort) {
	udp, streams = g.cfg.Addresses()
	return g.cfg.Key().String(), g.cfg.PodCIDR, udp, streams
}

// GatewayStream gives the tunnel a connection on which a gateway begins a stream. The caller closes its own copy.
func (g *Registry) GatewayStream(conn net.Conn) error { return g.cfg.HandOver(conn) }

// GatewayPath is the path to the gateway in use, with its traffic counters; false while none works.
func (g *Registry) GatewayPath(ctx context.Context, name string) (gatewayproto.Path, bool) {
	status, err := g.cfg.Status(ctx)
	if err != nil {
		return gatewayproto.Path{}, false
	}
	i := slices.IndexFunc(status.Peers, func(p tunnel.PeerStatus) bool { return p.ID == ID(name) })
	if i < 0 {
		return gatewayproto.Path{}, false
	}
	p := status.Peers[i]
	path := gatewayproto.Path{Received: p.Received, Sent: p.Sent, LastHandshake: p.LastHandshake}
	if len(p.Paths) == 0 || !p.Paths[0].Used {
		return path, false
	}
	used := p.Paths[0]
	path.Kind, path.RTT = string(used.Kind), used.RTT
	if used.Addr.IsValid() && !used.Addr.Addr().IsLoopback() {
		path.Address = used.Addr.String()
	}
	return path, true
}

// TunnelPeers are the gateways in the data plane's configuration, by name.
func (g *Registry) TunnelPeers() (out []tunnel.Peer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(g.peers)) {
		out = append(out, g.peers[name])
	}
	return out
}

// PrefixesBut are the prefixes of all gateways but one.
func (g *Registry) PrefixesBut(id peer.ID) (out []netip.Prefix) {
	for _, p := range g.TunnelPeers() {
		if p.ID != string(id) {
			out = append(out, p.PeerMappedCIDR)
		}
	}
	return out
}

// KeyOwner names the gateway with one of the keys; empty if there is none.
func (g *Registry) KeyOwner(keys ...wgkey.Public) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, p := range g.peers {
		if wgkey.Common(keys, []wgkey.Public{p.PublicKey}) {
			return name
		}
	}
	return ""
}
