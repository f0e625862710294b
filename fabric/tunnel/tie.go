package tunnel

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
)

// tie is a UDP bind that lets one of two handshakes win that were begun from both
// ends at once. Each end would answer the other's, forget its own, and ignore the
// answer to it: both then wait for a first packet that neither can send, until they
// try again five seconds later. Tunnels are set up on both sides in the same
// moment, so that would be nothing rare.
//
// Both ends see both messages; the one with the lower number, which is random,
// wins: its sender does not hear the other.
type tie struct {
	conn.Bind
	mu   sync.Mutex
	sent map[netip.AddrPort]begun // handshakes without an answer yet
}

type begun struct {
	number uint32
	at     time.Time
}

const (
	// tieWindow is longer than most round trips. A peer that begins later has not
	// got ours.
	tieWindow = 250 * time.Millisecond

	initiationSize, responseSize = 148, 92
)

// Open opens the sockets below.
func (b *tie) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	fns, actual, err := b.Bind.Open(port)
	judged := make([]conn.ReceiveFunc, len(fns))
	for i, receive := range fns {
		judged[i] = func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			n, err := receive(packets, sizes, from)
			for i := range n {
				if size := sizes[i]; (size == initiationSize || size == responseSize) && !b.hear(packets[i][:size], from[i], time.Now()) {
					sizes[i] = 0
				}
			}
			return n, err
		}
	}
	return judged, actual, err
}

// Send sends packets to a peer.
func (b *tie) Send(bufs [][]byte, to conn.Endpoint) error {
	for _, buf := range bufs {
		if len(buf) == initiationSize && buf[0] == initiation {
			b.begin(buf, to, time.Now())
		}
	}
	return b.Bind.Send(bufs, to)
}

func (b *tie) begin(packet []byte, to conn.Endpoint, now time.Time) {
	at, ok := whereIs(to)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent == nil {
		b.sent = map[netip.AddrPort]begun{}
	}
	for a, s := range b.sent {
		if now.Sub(s.at) >= tieWindow {
			delete(b.sent, a)
		}
	}
	b.sent[at] = begun{number: binary.LittleEndian.Uint32(packet[4:]), at: now}
}

// hear reports whether WireGuard may hear the packet.
func (b *tie) hear(packet []byte, from conn.Endpoint, now time.Time) bool {
	if packet[0] != initiation && packet[0] != response {
		return true
	}
	at, ok := whereIs(from)
	if !ok {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	ours, ok := b.sent[at]
	if !ok {
		return true
	}
	if packet[0] == response {
		delete(b.sent, at)
		return true
	}
	return now.Sub(ours.at) >= tieWindow || ours.number >= binary.LittleEndian.Uint32(packet[4:])
}

func whereIs(e conn.Endpoint) (netip.AddrPort, bool) {
	std, ok := e.(*conn.StdNetEndpoint)
	if !ok {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(std.Addr().Unmap(), std.Port()), true
}
