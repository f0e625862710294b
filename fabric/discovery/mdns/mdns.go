// Package mdns is the discovery source for the LAN: multicast DNS service discovery, service _rivulet._tcp, the
// cluster's ID as instance name.
//
// github.com/grandcat/zeroconf probes, announces, answers and sends goodbyes. Its browser is not used: it reports an
// entry only once, ignores goodbyes, and opens sockets for each query. This package has its own pair of sockets, an
// expiring cache and heartbeats, so that steady traffic is one packet per device and 40 s, or 80 s where there are many.
//
// It reads the LAN interfaces from netmon and multicast packets; it writes nothing. After a restart it queries again
// and finds the LAN within a second. On a network that blocks multicast, no peers are discovered; known peers still
// work.
package mdns

import (
	"log/slog"
	"sync/atomic"
	"time"

	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
)

const (
	service     = "_rivulet._tcp"
	domain      = "local."
	serviceName = service + "." + domain
)

// Timing is how often multicast is used. Tests shorten it.
type Timing struct {
	// Heartbeat is how often a device announces itself when nothing changes, up to half as often on a LAN with many
	// devices.
	Heartbeat time.Duration
	// Again are the delays after a change at which the announcement is repeated, since radio loses multicast.
	Again []time.Duration
	// Expire is how long an entry lives without a sign of life. When a quarter of it is left, the device is queried
	// once more.
	Expire time.Duration
	// Goodbye is the wait for another announcement after a goodbye: a device that changes sends a goodbye as well.
	Goodbye time.Duration
	// Query are the delays, after start and after a change of the interfaces, of queries for all devices.
	Query []time.Duration
	// QueryAgain is the later interval of queries for all devices, unless another device has sent one.
	QueryAgain time.Duration
	// Once is the least time between two queries for one device.
	Once time.Duration
	// Owner is the silence of a name's owner after which devices that wait for the name probe for it.
	Owner time.Duration
}

// fewDevices announce themselves every Heartbeat; of more, each does so less often, by their number.
const fewDevices = 80

// DefaultTiming keeps 30 devices below one packet a second, and 200 below three.
var DefaultTiming = Timing{
	Heartbeat:  40 * time.Second,
	Again:      []time.Duration{3 * time.Second, 10 * time.Second, 25 * time.Second},
	Expire:     130 * time.Second,
	Goodbye:    1500 * time.Millisecond,
	Query:      []time.Duration{0, time.Second, 4 * time.Second},
	QueryAgain: 30 * time.Minute,
	Once:       4500 * time.Millisecond,
	Owner:      time.Minute,
}

type Source struct {
	lans   *netmon.Monitor
	timing Timing
	log    *slog.Logger
	keep   atomic.Pointer[func(peer.ID) bool]
	seen   atomic.Int64 // entries of the cache
}

// New returns a source on the LANs of the monitor, which the caller runs.
func New(lans *netmon.Monitor, timing Timing, log *slog.Logger) *Source {
	if timing.QueryAgain == 0 { // zero intervals would flood the LAN
		timing = DefaultTiming
	}
	return &Source{lans: lans, timing: timing, log: log}
}

// Keep sets the function that reports whether a device is known to be real: such devices stay when more are announced
// than can be stored.
func (s *Source) Keep(known func(peer.ID) bool) { s.keep.Store(&known) }

func (s *Source) retained(id peer.ID) bool {
	known := s.keep.Load()
	return known != nil && (*known)(id)
}

func (s *Source) Name() string { return "mdns" }
