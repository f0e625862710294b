package wgdev

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"rivulet/fabric/tunnel/paths"
)

// arbiter is a bind that lets one of two handshakes win that both ends began at once. Otherwise each end would answer
// the other's, forget its own, and ignore the answer to it: both would then wait for a first packet that neither can
// send, until they retry five seconds later. Both sides set up tunnels at the same moment, so this is common.
//
// Both ends see both messages; the one with the lower number, which is random, wins: its sender does not receive the
// other, unless no answer comes in time. In that case the other end could not accept the winner (for example without
// the new key), and its own message is delivered after all.
type arbiter struct {
	conn.Bind
	simultaneous *simultaneous // repairs those that cross all the same; nil: none
	outermost    bool          // all packets pass it

	mu   sync.Mutex
	port uint16
	sent map[netip.AddrPort]begun // unanswered own handshakes
	held map[netip.AddrPort]held  // those that lost against them
	// accepted has the senders of handshakes recently given to WireGuard, which is about to answer; late is an own
	// handshake to the same address, which would cross the answer.
	accepted map[netip.AddrPort]accepted
	late     map[netip.AddrPort]held
}

type accepted struct {
	number   uint32
	at       time.Time
	answered bool
	doubted  bool   // WireGuard may have ignored it
	forgot   *begun // own handshake, answered all the same
}

type held struct {
	packet []byte
	from   conn.Endpoint
	due    time.Time
}

type begun struct {
	number uint32
	at     time.Time
	first  time.Time // one is sent again when a path answers
}

const (
	// arbitrationWindow is longer than most round trips. A peer that begins later has not received the own handshake.
	arbitrationWindow = 250 * time.Millisecond
	// maxHeld bounds the messages held for strangers; each needs an address with an own handshake.
	maxHeld = 256

	initiationSize, responseSize = 148, 92
)

func (b *arbiter) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	fns, actual, err := b.Bind.Open(port)
	b.mu.Lock()
	b.port = actual
	b.mu.Unlock()
	arbitrated := make([]conn.ReceiveFunc, len(fns))
	for i, receive := range fns {
		arbitrated[i] = func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			n, err := receive(packets, sizes, from)
			for i := range n {
				if size := sizes[i]; (size == initiationSize || size == responseSize) && !b.admits(packets[i][:size], from[i], time.Now()) {
					sizes[i] = 0
				}
			}
			if err == nil {
				n = b.deliver(packets, sizes, from, n, time.Now())
			}
			return n, err
		}
	}
	return arbitrated, actual, err
}

// deliver adds messages that were held long enough to the received ones.
func (b *arbiter) deliver(packets [][]byte, sizes []int, from []conn.Endpoint, n int, now time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for at, h := range b.held {
		if n == len(packets) {
			break
		}
		if !now.Before(h.due) {
			sizes[n], from[n] = copy(packets[n], h.packet), h.from
			n++
			delete(b.held, at)
			b.given(at, numberOf(h.packet), now)
		}
	}
	return n
}

// wake makes a receive function return: with a datagram of one byte to itself, which is too short for WireGuard.
func (b *arbiter) wake() {
	b.mu.Lock()
	n, port := len(b.held), b.port
	b.mu.Unlock()
	if n == 0 {
		return
	}
	for _, self := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		if b.Bind.Send([][]byte{{0}}, &conn.StdNetEndpoint{AddrPort: netip.AddrPortFrom(self, port)}) == nil {
			return
		}
	}
}

func (b *arbiter) Send(bufs [][]byte, to conn.Endpoint) error {
	if len(bufs) == 1 { // as handshakes are
		switch buf := bufs[0]; {
		case len(buf) == initiationSize && buf[0] == initiation && !b.begin(buf, to, time.Now()):
			return nil
		case len(buf) == responseSize && buf[0] == response:
			b.answer(to)
		}
	}
	return b.Bind.Send(bufs, to)
}

// begin reports whether an own handshake may leave: not if the peer's was received just now. It leaves after all if
// that one is not answered in time. One that stays has not begun for any arbiter, so none holds back the peer's for it.
func (b *arbiter) begin(packet []byte, to conn.Endpoint, now time.Time) bool {
	at, ok := whereIs(to)
	if !ok || b.mayLeave(at, packet, to, now) {
		return true
	}
	if b.simultaneous != nil {
		b.simultaneous.withheld(numberOf(packet))
	}
	return false
}

func (b *arbiter) mayLeave(at netip.AddrPort, packet []byte, to conn.Endpoint, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent == nil {
		b.sent, b.held, b.late = map[netip.AddrPort]begun{}, map[netip.AddrPort]held{}, map[netip.AddrPort]held{}
	}
	for a, s := range b.sent {
		if now.Sub(s.at) >= rememberFor {
			delete(b.sent, a)
		}
	}
	if h, ok := b.accepted[at]; ok && !(h.doubted && !h.answered) && now.Sub(h.at) < arbitrationWindow {
		if !h.answered {
			b.late[at] = held{packet: bytes.Clone(packet), from: to}
			time.AfterFunc(arbitrationWindow, func() { b.beginLate(at) })
		}
		return false
	}
	b.left(at, packet, to, now)
	return true
}

// left records an own handshake that leaves. It is called with mu held.
func (b *arbiter) left(at netip.AddrPort, packet []byte, to conn.Endpoint, now time.Time) {
	ours := begun{number: numberOf(packet), at: now, first: now}
	if was, again := b.sent[at]; again && was.number == ours.number {
		ours.first = was.first
	}
	b.sent[at] = ours
	if b.simultaneous != nil {
		b.simultaneous.began(numberOf(packet), to, now)
	}
}

func (b *arbiter) beginLate(at netip.AddrPort) {
	b.mu.Lock()
	h, ok := b.late[at]
	delete(b.late, at)
	if ok {
		b.left(at, h.packet, h.from, time.Now())
	}
	b.mu.Unlock()
	if ok {
		_ = b.Bind.Send([][]byte{h.packet}, h.from) // WireGuard retries by itself
	}
}

// answer records that the peer's handshake is answered.
func (b *arbiter) answer(to conn.Endpoint) {
	at, ok := whereIs(to)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if h, ok := b.accepted[at]; ok {
		h.answered = true
		b.accepted[at] = h
		delete(b.late, at)
		b.repair(h)
	}
}

// given records that WireGuard has received a handshake of the peer. It is called with mu held.
func (b *arbiter) given(at netip.AddrPort, number uint32, now time.Time) {
	if b.accepted == nil {
		b.accepted = map[netip.AddrPort]accepted{}
	}
	if len(b.accepted) >= maxHeld {
		for a, h := range b.accepted {
			if now.Sub(h.at) >= arbitrationWindow {
				delete(b.accepted, a)
			}
		}
	}
	h, again := b.accepted[at]
	if again && h.number == number && !h.doubted {
		return // one that is sent twice is answered once
	}
	if again || len(b.accepted) < maxHeld {
		b.accepted[at] = accepted{number: number, at: now}
	}
}

// admits reports whether WireGuard may receive the packet.
func (b *arbiter) admits(packet []byte, from conn.Endpoint, now time.Time) bool {
	if packet[0] != initiation && packet[0] != response {
		return true
	}
	if b.outermost && packet[0] == initiation && b.simultaneous.copied(numberOf(packet), now) {
		return false
	}
	at, ok := whereIs(from)
	if !ok {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	ours, ok := b.sent[at]
	if packet[0] == response {
		if h, ok := b.held[at]; ok && b.simultaneous != nil {
			b.simultaneous.copied(numberOf(h.packet), now) // it has lost, and so has a copy of it
		}
		delete(b.sent, at)
		delete(b.held, at)
		if ok && b.simultaneous != nil && binary.LittleEndian.Uint32(packet[8:]) == ours.number {
			b.answered(at, ours)
		}
		return true
	}
	if !ok || now.Sub(ours.at) >= arbitrationWindow || ours.number >= numberOf(packet) {
		b.given(at, numberOf(packet), now)
		return true
	}
	if _, again := b.held[at]; again || len(b.held) < maxHeld {
		b.held[at] = held{packet: bytes.Clone(packet), from: from, due: now.Add(arbitrationWindow)}
		time.AfterFunc(arbitrationWindow+time.Millisecond, b.wake)
	}
	return false
}

// answered checks whether the answer to the own handshake comes after WireGuard has received the peer's: WireGuard
// answers that one and forgets its own. It is called with mu held.
func (b *arbiter) answered(at netip.AddrPort, ours begun) {
	if h, ok := b.accepted[at]; ok && (h.doubted || !h.at.Before(ours.first)) {
		h.forgot = &ours
		b.accepted[at] = h
		b.repair(h)
	}
}

// repair makes one of the two ends begin again, the one with the lower number, once both have answered: strangers can
// send a fake handshake, which is not answered.
func (b *arbiter) repair(h accepted) {
	if h.answered && h.forgot != nil && h.forgot.number < h.number {
		go b.simultaneous.repair(h.forgot.number, h.number) // the caller may be WireGuard, holding a lock
	}
}

// withdraw removes an own handshake that has not left, and delivers the peer's that was held back for it.
func (b *arbiter) withdraw(number uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for at, ours := range b.sent {
		if ours.number != number {
			continue
		}
		delete(b.sent, at)
		if h, ok := b.held[at]; ok {
			h.due = time.Time{}
			b.held[at] = h
			go b.wake()
		}
	}
}

// doubt marks the received handshakes that WireGuard has not answered: it has ignored those of a peer that it did not
// know, so a handshake to that peer does not wait for an answer.
func (b *arbiter) doubt() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for at, h := range b.accepted {
		h.doubted = h.doubted || !h.answered
		b.accepted[at] = h
	}
}

// forget removes a received handshake.
func (b *arbiter) forget(number uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.accepted, func(_ netip.AddrPort, h accepted) bool { return h.number == number })
}

// numberOf is the number that the sender of a handshake message has chosen for it.
func numberOf(packet []byte) uint32 { return binary.LittleEndian.Uint32(packet[4:]) }

// whereIs identifies a destination: an address, or a peer by any path.
func whereIs(e conn.Endpoint) (netip.AddrPort, bool) {
	switch e := e.(type) {
	case *conn.StdNetEndpoint:
		return netip.AddrPortFrom(e.Addr().Unmap(), e.Port()), true
	case *paths.Endpoint:
		return netip.AddrPortFrom(e.DstIP(), 0), true
	}
	return netip.AddrPort{}, false
}
