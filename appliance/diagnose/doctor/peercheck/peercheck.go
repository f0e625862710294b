// Package peercheck finds the layer at which the way to one peer breaks, from the bottom up: one that fails is what
// there is to mend, and those above it, which could only repeat it, are skipped. It reads the supervisor's state of
// the peer and queries the peer itself, on the LAN and through the tunnel; it writes and keeps nothing.
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

// Case is one peer and the ways to ask about it.
type Case struct {
	Peer peer.View
	// Addrs are the control addresses to try on the LAN.
	Addrs []netip.AddrPort
	// Version and KubeVersion are our own.
	Version, KubeVersion string
	// Tunnel is what the data plane says; nil if it does not answer.
	Tunnel *tunnel.Status
	// Dial opens a connection outside of the tunnel.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	// Identify says, over such a connection, which cluster is there.
	Identify func(ctx context.Context, c net.Conn) (peer.ID, error)
	// Query asks the peer through the tunnel, with a payload of so many bytes that it
	// sends back.
	Query func(ctx context.Context, size int) (Answer, error)
	// API returns the version of the peer's API server, asked through the tunnel.
	API func(ctx context.Context) (string, error)
	Now func() time.Time
}

// Answer is what a peer says of itself, and of how it sees us.
type Answer struct {
	Version     string `json:"version"`
	KubeVersion string `json:"kubeVersion,omitempty"`
	// SeenAs is the address that the question came from, as the peer sees it.
	SeenAs netip.Addr `json:"seenAs"`
	// DNS and API say what keeps its cluster's DNS and API server from answering; empty is well.
	DNS string `json:"dns,omitempty"`
	API string `json:"api,omitempty"`
	// Payload is as long as was asked for.
	Payload []byte `json:"payload,omitempty"`
	// Took is the time until the answer was there, nanoseconds; it is measured, not told.
	Took time.Duration `json:"-"`
}

// Layer is one question and its result.
type Layer struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	doctor.Result
	Took time.Duration `json:"took"` // nanoseconds
}

// Report is what was found, from the bottom up.
type Report struct {
	At     time.Time `json:"at"`
	Peer   string    `json:"peer"`
	ID     peer.ID   `json:"id"`
	Layers []Layer   `json:"layers"`
}

// Failed returns the layer that is to be mended; false if there is none.
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

// probe asks at one layer.
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

// examination is a case while it is looked into.
type examination struct {
	Case
	conn     net.Conn // to the control port on the LAN
	at       netip.AddrPort
	received Answer
	works    bool // the tunnel carries: nothing below it is broken for good
	broken   string
}

// Examine asks all layers.
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
