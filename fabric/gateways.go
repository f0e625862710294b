package fabric

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/fabric/keyring"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
)

// gateways has the gateways of clusters without Rivulet. A gateway pod (package gateway) is a peer of the tunnel only: it
// has no identity, no control port and no record. It reads the data plane's status for the path of a gateway. It writes
// nothing: the owner of a gateway registers it again in each run. Its lock is a leaf.
type gateways struct {
	pods             netip.Prefix
	port, tunnelPort uint16
	lans             LANs
	data             DataPlane
	keys             *keyring.Ring
	prefixes         *prefixes
	plane            *plane
	members          *members

	mu     sync.Mutex
	byName map[string]tunnel.Peer
}

// gatewayID distinguishes gateways from clusters in the tunnel's configuration.
func gatewayID(name string) string { return "gateway." + name }

// SetGateway makes the gateway of that name a peer of the tunnel, with its public key and the prefix under which this
// cluster sees the pods behind it. An invalid prefix or key removes it.
func (g *gateways) SetGateway(name, publicKey string, prefix netip.Prefix) {
	g.mu.Lock()
	if key, err := wgkey.Parse(publicKey); prefix.IsValid() && err == nil {
		g.byName[name] = tunnel.Peer{ID: gatewayID(name), PublicKey: key, LocalMappedCIDR: g.pods, PeerMappedCIDR: prefix}
	} else {
		delete(g.byName, name)
	}
	g.mu.Unlock()
	g.plane.kick()
	g.members.changed.Notify()
}

// Gateways are the prefixes of all gateways, in order. Fabric.Changed reports changes of them, too.
func (g *gateways) Gateways() []netip.Prefix {
	all := g.prefixesBut("")
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// GatewayPrefix chooses a free prefix for the pods behind the gateway: the previous one if it is still free.
func (g *gateways) GatewayPrefix(name string, previous netip.Prefix) (netip.Prefix, error) {
	return g.prefixes.choose(peer.ID(gatewayID(name)), previous)
}

// GatewayConfig is this cluster's part of a gateway's configuration.
func (g *gateways) GatewayConfig() (publicKey string, pods netip.Prefix, udp, streams []netip.AddrPort) {
	lans := g.lans.LANs()
	return g.keys.Now().Public.String(), g.pods, candidates(lans, g.tunnelPort), candidates(lans, g.port)
}

// GatewayStream gives the tunnel a connection on which a gateway begins a stream. The caller closes its own copy.
func (g *gateways) GatewayStream(conn net.Conn) error { return takeOver(g.data, conn, nil) }

// GatewayPath is the path to the gateway in use, with its traffic counters; false while none works.
func (g *gateways) GatewayPath(ctx context.Context, name string) (gatewayproto.Path, bool) {
	status, err := g.data.Status(ctx)
	if err != nil {
		return gatewayproto.Path{}, false
	}
	i := slices.IndexFunc(status.Peers, func(p tunnel.PeerStatus) bool { return p.ID == gatewayID(name) })
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

// tunnelPeers are the gateways in the data plane's configuration, by name.
func (g *gateways) tunnelPeers() (out []tunnel.Peer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(g.byName)) {
		out = append(out, g.byName[name])
	}
	return out
}

// prefixesBut are the prefixes of all gateways but one.
func (g *gateways) prefixesBut(id peer.ID) (out []netip.Prefix) {
	for _, p := range g.tunnelPeers() {
		if p.ID != string(id) {
			out = append(out, p.PeerMappedCIDR)
		}
	}
	return out
}

// keyOwner names the gateway with one of the keys; empty if there is none.
func (g *gateways) keyOwner(keys ...wgkey.Public) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, p := range g.byName {
		if wgkey.Common(keys, []wgkey.Public{p.PublicKey}) {
			return name
		}
	}
	return ""
}
