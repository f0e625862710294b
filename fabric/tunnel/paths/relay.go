package paths

import (
	"sync"
	"time"
)

// Bounds of the traffic relayed for one peer: average bytes per second, and bytes at once. A hub's peers are strangers.
const (
	relayRate  = 32 << 20
	relayBurst = 4 << 20
	hubRate    = 8 << 20
	hubSum     = 64 << 20 // for all of a hub's peers
)

// frame processes a relay frame: one for this device, or one to forward. It keeps nothing.
func (m *Manager) frame(packet []byte, from origin) ([]byte, *Endpoint) {
	src, dst, ok := relayed(packet)
	if !ok {
		return nil, nil
	}
	hop := m.neighbour(packet, src, from)
	if hop == nil {
		return nil, nil
	}
	m.mu.Lock()
	self := m.self.tag()
	m.mu.Unlock()
	payload := packet[relayHead:]
	if dst != self {
		to := m.tagged(dst, hop.room)
		if to != nil && to != hop && hop.short.tag() == src && m.relay.Load() && m.related(hop, to) && m.take(hop, len(packet)) {
			if next := to.hop.Load(); next != nil {
				to.secretNow().frame(packet[:relayHead], src, dst, payload)
				_ = next.send([][]byte{packet}) // lost, as on any path
				m.relayed.Add(1)
			}
		}
		return nil, nil
	}
	p := m.tagged(src, hop.room)
	if p == nil || p == hop || p.broker || m.hub.Load() {
		return nil, nil
	}
	if payload[0] == magic {
		m.receive(payload, origin{kind: Relay, via: hop})
		return nil, nil
	}
	return payload, p.end
}

// related reports whether this device relays between the two: a broker is an end of nothing, and at a hub both have to be
// in one room.
func (m *Manager) related(from, to *peer) bool {
	return !from.broker && !to.broker && from.room == to.room
}

// neighbour returns the peer that sent the frame: the source, if this device is the relay, otherwise the relay. The MAC
// proves it.
func (m *Manager) neighbour(packet []byte, src tag, from origin) *peer {
	if from.kind == Stream {
		if from.w.peer.secretNow().framed(packet) {
			return from.w.peer
		}
		return nil
	}
	if p := (*m.byAddr.Load())[from.addr()]; p != nil && p.secretNow().framed(packet) {
		return p
	}
	for _, p := range (*m.byTag.Load())[src] {
		if p.secretNow().framed(packet) {
			return p // from an address that is not proved yet
		}
	}
	return nil
}

// tagged returns the peer with the tag in a room; nil if there is none. Members of other rooms may have the same tag,
// by chance or because they want to.
func (m *Manager) tagged(t tag, room string) *peer {
	for _, p := range (*m.byTag.Load())[t] {
		if p.room == room {
			return p
		}
	}
	return nil
}

// take counts n bytes that are relayed for a peer; false if that is too much.
func (m *Manager) take(from *peer, n int) bool {
	now := time.Now()
	if from.rate.take(n, m.rate(), now) && (!m.hub.Load() || m.sum.take(n, hubSum, now)) {
		return true
	}
	m.refused.Add(1)
	return false
}

func (p *peer) secretNow() *secret {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	return p.secret
}

type bucket struct {
	mu   sync.Mutex
	left float64
	at   time.Time
}

// rate is how many bytes per second are relayed for one peer.
func (m *Manager) rate() float64 {
	if m.hub.Load() {
		return hubRate
	}
	return relayRate
}

func (b *bucket) take(n int, rate float64, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at.IsZero() {
		b.left = relayBurst
	} else {
		b.left = min(relayBurst, b.left+now.Sub(b.at).Seconds()*rate)
	}
	b.at = now
	if b.left < float64(n) {
		return false
	}
	b.left -= float64(n)
	return true
}
