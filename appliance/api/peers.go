package api

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/tunnel/paths"
	"rivulet/offload/policy"
)

// Peer is one cluster with its state in the tunnel.
type Peer struct {
	peer.View
	// Way is the tunnel to it; nil if there is none.
	Way *Way `json:"way,omitempty"`
	// Opened is what the peer reaches here beside its own pods: namespaces, and Services as namespace/name.
	Opened []string `json:"opened,omitempty"`
	// Relayed are the peers, by name, whose pods of this cluster those at the peer reach through this cluster.
	Relayed []string `json:"relayed,omitempty"`
	// Cordoned are the virtual nodes of the peer that take no new pods (rivulet cordon).
	Cordoned []string `json:"cordoned,omitempty"`
	// LendsNothing: its owner lends nothing to this cluster, or to any.
	LendsNothing bool `json:"lendsNothing,omitempty"`
	// Unchosen: virtualNodes of this cluster does not select it.
	Unchosen bool `json:"unchosen,omitempty"`
}

// Way is the path of the tunnel's packets, and their counters.
type Way struct {
	// Path is direct, relay or stream; empty while no path is known to work. Via is the ID of the relay, or "broker".
	Path          string         `json:"path,omitempty"`
	Via           string         `json:"via,omitempty"`
	Endpoint      netip.AddrPort `json:"endpoint"`
	LastHandshake time.Time      `json:"lastHandshake"` // zero if never
	Received      uint64         `json:"received"`      // bytes, since the tunnel's process started
	Sent          uint64         `json:"sent"`
	MTU           int            `json:"mtu,omitempty"` // largest packet inside the tunnel, bytes; measured
}

// PeerList joins the states of fabric and tunnel.
func (st Status) PeerList() []Peer {
	ways := map[string]*Way{}
	if st.Tunnel != nil {
		for _, p := range st.Tunnel.Peers {
			w := &Way{Endpoint: p.Endpoint, LastHandshake: p.LastHandshake, Received: p.Received, Sent: p.Sent, MTU: p.MTU}
			if used, ok := UsedPath(p); ok {
				w.Path, w.Via = string(used.Kind), used.Via
				if slices.ContainsFunc(st.Tunnel.Brokers, func(b tunnel.BrokerStatus) bool { return b.ID == used.Via }) {
					w.Via = "broker"
				}
			}
			ways[p.ID] = w
		}
	}
	out := make([]Peer, 0, len(st.Peers))
	for _, v := range st.Peers {
		p := Peer{View: v, Way: ways[string(v.ID)]}
		if !v.State.Apart() {
			p.LendsNothing = v.TheirRoles.NoProvide || slices.Contains(st.LendNothing, string(v.ID))
			p.Unchosen = slices.Contains(st.Unchosen, string(v.ID))
			p.Opened = append(append(p.Opened, st.Open[policy.OpenToAll]...), st.Open[string(v.ID)]...)
			if v.Trust.How == peer.TrustGroup {
				p.Opened = append(p.Opened, st.Open[policy.OpenToGroup]...)
			}
			slices.Sort(p.Opened)
			p.Opened = slices.Compact(p.Opened)
			for _, other := range st.Peers {
				if slices.Contains(st.Relayed[v.ID], other.ID) {
					p.Relayed = append(p.Relayed, cmp.Or(other.Name, other.ID.Short()))
				}
			}
		}
		for _, n := range st.VirtualNodes {
			if n.Cordoned && n.ID == string(v.ID) {
				p.Cordoned = append(p.Cordoned, n.Name)
			}
		}
		out = append(out, p)
	}
	return out
}

// UsedPath returns the path of the peer's packets; false if none is known to work: the peer may have an older version,
// and WireGuard finds the path alone.
func UsedPath(p tunnel.PeerStatus) (paths.PathStatus, bool) {
	for _, way := range p.Paths {
		if way.Used {
			return way, true
		}
	}
	return paths.PathStatus{}, false
}
