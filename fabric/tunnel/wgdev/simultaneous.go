package wgdev

import (
	"maps"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"rivulet/fabric/tunnel/paths"
)

// simultaneous repairs two handshakes that crossed in spite of the arbiter: on a line whose round trip is longer than
// arbitrationWindow, or on slow machines, each end has answered the other's before the answer to its own arrives.
//
//	A ──I(a)──╲ ╱──I(b)── B     each receives, forgets its own and answers
//	A ──R(b)──╳──R(a)── B       each ignores the answer to the forgotten one
//	A, B                        wait for a first packet that neither can send
//
// WireGuard retries after five seconds at both ends, with a jitter of a third of a second, so on a longer line those
// cross as well. So the end with the lower number begins again when it sees the answer to its forgotten handshake. By
// then none of the other's is under way, and nothing crosses.
type simultaneous struct {
	again func(paths.Key) // begins a handshake again

	mu        sync.Mutex
	arbiters  []*arbiter
	initiated map[uint32]started   // by the number of the handshake
	received  map[uint32]time.Time // the peers', by number
}

// started is the peer of a handshake. Its address does not identify the peer: before a path is proved it is sent to
// several addresses.
type started struct {
	who paths.Key
	at  time.Time
}

// repairAfter is longer than the time in which WireGuard ignores another handshake of a peer (and takes one with the
// same time stamp for a replay).
const repairAfter = device.HandshakeInitationRate * 3 / 2

// rememberFor is how long a handshake is stored: WireGuard has begun another by then.
const rememberFor = 2 * device.RekeyTimeout

// arbiter returns one that reports crossed handshakes.
func (c *simultaneous) arbiter(b conn.Bind) *arbiter {
	t := &arbiter{Bind: b, simultaneous: c}
	c.arbiters = append(c.arbiters, t)
	return t
}

// began records an own handshake.
func (c *simultaneous) began(number uint32, to conn.Endpoint, now time.Time) {
	e, ok := to.(*paths.Endpoint)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.initiated == nil {
		c.initiated = map[uint32]started{}
	}
	for n, a := range c.initiated {
		if now.Sub(a.at) >= rememberFor {
			delete(c.initiated, n)
		}
	}
	c.initiated[number] = started{who: e.Peer(), at: now}
}

// repair begins again, once for an own handshake that crossed with one of the peer.
func (c *simultaneous) repair(ours, theirs uint32) {
	c.mu.Lock()
	a, ok := c.initiated[ours]
	arbiters := c.arbiters
	delete(c.initiated, ours)
	c.mu.Unlock()
	if ok {
		for _, t := range arbiters {
			t.forget(theirs) // otherwise it would hold back the new one
		}
		time.AfterFunc(repairAfter, func() { c.again(a.who) })
	}
}

// withheld processes that an own handshake has not left.
func (c *simultaneous) withheld(number uint32) {
	for _, t := range c.arbiters {
		t.withdraw(number)
	}
}

// configured processes that WireGuard has other peers than before.
func (c *simultaneous) configured() {
	c.mu.Lock()
	clear(c.received)
	c.mu.Unlock()
	for _, t := range c.arbiters {
		t.doubt()
	}
}

// copied reports whether a handshake of a peer was received just now, for example by another path. WireGuard's workers
// would answer two copies that come together twice, and the session of the second answer is one that the peer ignores.
func (c *simultaneous) copied(number uint32, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.received[number]; ok && now.Sub(at) < arbitrationWindow {
		return true
	}
	if len(c.received) >= maxHeld {
		maps.DeleteFunc(c.received, func(_ uint32, at time.Time) bool { return now.Sub(at) >= arbitrationWindow })
	}
	if c.received == nil {
		c.received = map[uint32]time.Time{}
	}
	if len(c.received) < maxHeld {
		c.received[number] = now
	}
	return false
}
