// Package peercheck finds the layer at which the path to one peer fails, from the bottom up: the first failure is to be
// repaired, and the layers above it, which would only repeat it, are skipped. It reads the supervisor's state of the
// peer and queries the peer itself, on the LAN and through the tunnel; it writes and stores nothing.
package peercheck

import (
	"context"
	"net"
	"net/netip"
	"time"

	"rivulet/appliance/diagnose/doctor"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
)

// Case is one peer and the ways to query it.
type Case struct {
	Peer peer.View
	// Addrs are the control addresses to try on the LAN.
	Addrs []netip.AddrPort
	// Version and KubeVersion are this cluster's.
	Version, KubeVersion string
	// Tunnel is the data plane's state; nil if it does not answer.
	Tunnel *tunnel.Status
	Access
	Now func() time.Time
}

// Access reaches the peer.
type Access interface {
	// Dial opens a connection outside of the tunnel.
	Dial(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	// Identify returns the cluster at the other end of such a connection.
	Identify(ctx context.Context, c net.Conn) (peer.ID, error)
	// Query queries the peer through the tunnel, for an answer with a payload of that many bytes.
	Query(ctx context.Context, size int) (Answer, error)
	// API returns the version of the peer's API server, requested through the tunnel.
	API(ctx context.Context) (string, error)
}

// Answer is a peer's state, and its view of this cluster.
type Answer struct {
	Version     string `json:"version"`
	KubeVersion string `json:"kubeVersion,omitempty"`
	// SeenAs is the source address of the request at the peer.
	SeenAs netip.Addr `json:"seenAs"`
	// DNS and API are the errors of its cluster's DNS and API server; empty is success.
	DNS string `json:"dns,omitempty"`
	API string `json:"api,omitempty"`
	// Payload has the requested length.
	Payload []byte `json:"payload,omitempty"`
	// Took is the measured time until the answer, nanoseconds.
	Took time.Duration `json:"-"`
}

// Layer is one check and its result.
type Layer struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	doctor.Result
	Took time.Duration `json:"took"` // nanoseconds
}

// Report has the results, from the bottom up.
type Report struct {
	At     time.Time `json:"at"`
	Peer   string    `json:"peer"`
	ID     peer.ID   `json:"id"`
	Layers []Layer   `json:"layers"`
}

// Failed returns the layer to be repaired; false if there is none.
func (r Report) Failed() (Layer, bool) {
	for _, l := range r.Layers {
		if l.Status == doctor.Fail {
			return l, true
		}
	}
	return Layer{}, false
}

// layerTime bounds one layer.
const layerTime = 6 * time.Second

// probe is the check of one layer.
type probe struct {
	name, title string
	run         func(*examination, context.Context) doctor.Result
}

// layers, from the bottom.
var layers = []probe{
	{"discovery", "finding it", (*examination).discovery},
	{"tcp", "TCP to its control port", (*examination).tcp},
	{"identity", "who answers there (TLS)", (*examination).identity},
	{"peering", "trust, records and versions", (*examination).peering},
	{"udp", "the way of the tunnel", (*examination).way},
	{"handshake", "keys of the tunnel", (*examination).handshake},
	{"tunnel", "an answer through the tunnel", (*examination).answer},
	{"mtu", "large packets", (*examination).mtu},
	{"translation", "addresses of both sides", (*examination).translation},
	{"dns", "its cluster's DNS", (*examination).dns},
	{"api", "its API server", (*examination).api},
}

// examination is the state of a case in progress.
type examination struct {
	Case
	conn     net.Conn // to the control port on the LAN
	at       netip.AddrPort
	received Answer
	works    bool // the tunnel works, so nothing below it is a failure
	broken   string
}

// Examine checks all layers.
func Examine(ctx context.Context, c Case) Report {
	if c.Now == nil {
		c.Now = time.Now
	}
	e := &examination{Case: c, works: c.Peer.State == peer.Connected}
	rep := Report{At: c.Now(), Peer: c.Peer.Name, ID: c.Peer.ID}
	for _, p := range layers {
		l := Layer{Name: p.name, Title: p.title}
		begun := time.Now()
		if e.broken != "" {
			l.Result = doctor.Skipf("not asked, because %s fails", e.broken)
		} else {
			bounded, cancel := context.WithTimeout(ctx, layerTime)
			l.Result = p.run(e, bounded)
			cancel()
			l.Took = time.Since(begun)
		}
		if l.Status == doctor.Fail {
			e.broken = p.name
		}
		rep.Layers = append(rep.Layers, l)
	}
	if e.conn != nil {
		e.conn.Close()
	}
	return rep
}
