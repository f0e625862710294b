package api

import (
	"net/netip"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
)

// Peer is one cluster with what the tunnel knows of it.
type Peer struct {
	peer.View
	// Way is the tunnel to it; nil if there is none.
	Way *Way `json:"way,omitempty"`
}

// Way is how the tunnel's packets go, and what went.
type Way struct {
	// Path is udp, stream or relay.
	Path          string         `json:"path"`
	Endpoint      netip.AddrPort `json:"endpoint"`
	LastHandshake time.Time      `json:"lastHandshake"` // zero if never
	Received      uint64         `json:"received"`      // bytes, since the tunnel's process started
	Sent          uint64         `json:"sent"`
}

// PeerList joins what fabric and tunnel know.
func (st Status) PeerList() []Peer {
	ways := map[string]*Way{}
	if st.Tunnel != nil {
		for _, p := range st.Tunnel.Peers {
			w := &Way{Path: PathOf(p), Endpoint: p.Endpoint, LastHandshake: p.LastHandshake, Received: p.Received, Sent: p.Sent}
			ways[p.ID] = w
		}
	}
	out := make([]Peer, 0, len(st.Peers))
	for _, v := range st.Peers {
		out = append(out, Peer{v, ways[string(v.ID)]})
	}
	return out
}

// PathOf names the kind of path that a peer's packets go by.
func PathOf(p tunnel.PeerStatus) string {
	return "udp"
}
