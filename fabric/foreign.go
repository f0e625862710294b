package fabric

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
)

// A gateway pod in a foreign cluster (package gateway) is a peer of the tunnel only: it has no identity, no control
// port and no record. Its owner registers it again in each run.

// foreignID distinguishes gateways from clusters in the tunnel's configuration.
func foreignID(name string) string { return "gateway." + name }

// SetGateway makes the gateway of that name a peer of the tunnel, with its public key and the prefix under which this
// cluster sees the pods behind it. An invalid prefix removes it.
func (f *Fabric) SetGateway(name, publicKey string, prefix netip.Prefix) {
	f.mu.Lock()
	if f.gateways == nil {
		f.gateways = map[string]tunnel.Peer{}
	}
	if key, err := wgkey.Parse(publicKey); prefix.IsValid() && err == nil {
		f.gateways[name] = tunnel.Peer{ID: foreignID(name), PublicKey: key, LocalMappedCIDR: f.cfg.PodCIDR, PeerMappedCIDR: prefix}
	} else {
		delete(f.gateways, name)
	}
	f.mu.Unlock()
	f.plane.kick()
	f.notify()
}

// Gateways are the prefixes of all gateways, in order. Changed reports changes of them, too.
func (f *Fabric) Gateways() []netip.Prefix {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.gatewayPrefixes("")
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// GatewayPrefix chooses a free prefix for the pods behind the gateway: the previous one if it is still free.
func (f *Fabric) GatewayPrefix(name string, previous netip.Prefix) (netip.Prefix, error) {
	return f.choose(peer.ID(foreignID(name)), previous)
}

// GatewayConfig is this cluster's part of a gateway's configuration.
func (f *Fabric) GatewayConfig() (publicKey string, pods netip.Prefix, udp, streams []netip.AddrPort) {
	lans := f.cfg.LANs.LANs()
	return f.keys.Now().Public.String(), f.cfg.PodCIDR, candidates(lans, f.cfg.TunnelPort), candidates(lans, f.cfg.Port)
}

// GatewayStream gives the tunnel a connection on which a gateway begins a stream. The caller closes its own copy.
func (f *Fabric) GatewayStream(conn net.Conn) error {
	t, ok := f.cfg.DataPlane.(taker)
	if !ok {
		return errNoStreams
	}
	return t.HandOver(conn, nil)
}

// GatewayPath is the path to the gateway in use, with its traffic counters; false while none works.
func (f *Fabric) GatewayPath(ctx context.Context, name string) (gatewayproto.Path, bool) {
	status, err := f.cfg.DataPlane.Status(ctx)
	if err != nil {
		return gatewayproto.Path{}, false
	}
	for _, p := range status.Peers {
		if p.ID == foreignID(name) {
			path := gatewayproto.Path{Received: p.Received, Sent: p.Sent, LastHandshake: p.LastHandshake}
			if len(p.Paths) == 0 || !p.Paths[0].Used {
				return path, false
			}
			w := p.Paths[0]
			path.Kind, path.RTT = string(w.Kind), w.RTT
			if w.Addr.IsValid() && !w.Addr.Addr().IsLoopback() {
				path.Address = w.Addr.String()
			}
			return path, true
		}
	}
	return gatewayproto.Path{}, false
}

// addGateways adds the gateways to the data plane's configuration, before peers. It is called with mu held.
func (f *Fabric) addGateways(c *tunnel.Config) {
	for _, name := range sortedKeys(f.gateways) {
		c.Peers = append(c.Peers, f.gateways[name])
	}
}

// gatewayPrefixes are those of all gateways but one. It is called with mu held.
func (f *Fabric) gatewayPrefixes(but peer.ID) (out []netip.Prefix) {
	for _, p := range f.gateways {
		if p.ID != string(but) {
			out = append(out, p.PeerMappedCIDR)
		}
	}
	return out
}
