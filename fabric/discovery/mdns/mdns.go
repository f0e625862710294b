// Package mdns is the discovery source for the LAN: multicast DNS service
// discovery, service _rivulet._tcp, the cluster's ID as instance name.
//
// github.com/grandcat/zeroconf probes, announces, answers and says goodbye. Its other half,
// which browses, is not used: it reports an entry once and never again, swallows goodbyes,
// and opens sockets for each question. In its place are a socket pair on the multicast
// group that asks and listens, a cache that expires, and heartbeats, so that steady traffic is one packet per device and 40 s in place of
// everybody asking everybody.
//
// It reads the LAN interfaces from netmon and what arrives by multicast; it writes
// nothing. After a restart it asks anew and knows the LAN again within a second.
// A network that blocks multicast looks like an empty one: the user sees no
// discovered peers, and known peers still work.
package mdns

import (
	"log/slog"
	"sync/atomic"
	"time"

	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
)

const (
	service = "_rivulet._tcp"
	domain  = "local."
	// serviceName is the DNS name whose PTR records name the instances.
	serviceName = service + "." + domain
)

// Timing is how often multicast is used. Tests shorten it.
type Timing struct {
	// Heartbeat is how often a device announces itself when nothing changes.
	Heartbeat time.Duration
	// Again are the delays after a change at which the announcement is repeated:
	// multicast gets lost on radio.
	Again []time.Duration
	// Expire is how long an entry lives without a sign of life. When a quarter of
	// it is left, the device is asked for once more.
	Expire time.Duration
	// Goodbye is how long a goodbye waits for the device to speak again: one that
	// changes says goodbye as well.
	Goodbye time.Duration
	// Query are the delays after start and after a change of the interfaces at which everybody is asked.
	Query []time.Duration
	// QueryAgain is how often everybody is asked after that, if nobody else has.
	QueryAgain time.Duration
	// Once is how long a device that was asked for is not asked for again.
	Once time.Duration
}

// DefaultTiming keeps 30 devices below one packet a second.
var DefaultTiming = Timing{
	Heartbeat:  40 * time.Second,
	Again:      []time.Duration{3 * time.Second, 10 * time.Second, 25 * time.Second},
	Expire:     130 * time.Second,
	Goodbye:    1500 * time.Millisecond,
	Query:      []time.Duration{0, time.Second, 4 * time.Second},
	QueryAgain: 30 * time.Minute,
	Once:       4500 * time.Millisecond,
}

// Source is the mDNS source.
type Source struct {
	lans   *netmon.Monitor
	timing Timing
	log    *slog.Logger
	keep   atomic.Pointer[func(peer.ID) bool]
}

// New returns a source on the LANs of the monitor, which the caller runs.
func New(lans *netmon.Monitor, timing Timing, log *slog.Logger) *Source {
	if timing.QueryAgain == 0 { // zero intervals would flood the LAN
		timing = DefaultTiming
	}
	return &Source{lans: lans, timing: timing, log: log}
}

// Keep names a function that says which devices are known to be real: they stay
// when somebody announces more than can be remembered.
func (s *Source) Keep(known func(peer.ID) bool) { s.keep.Store(&known) }

func (s *Source) retained(id peer.ID) bool {
	known := s.keep.Load()
	return known != nil && (*known)(id)
}

// Name returns "mdns".
func (s *Source) Name() string { return "mdns" }
