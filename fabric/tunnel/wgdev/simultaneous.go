package wgdev

import (
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"rivulet/fabric/tunnel/paths"
)

// simultaneous repairs two handshakes that crossed although the arbiter looks after it: on a line
// whose round trip is longer than arbitrationWindow, or on machines that are as slow, each
// end has answered the other's before the answer to its own is there.
//
//	A ──I(a)──╲ ╱──I(b)── B     each hears, forgets its own and answers
//	A ──R(b)──╳──R(a)── B       each ignores what is no answer any more
//	A, B                        wait for a first packet that neither can send
//
// WireGuard tries again after five seconds at both ends, so that those cross as well:
// it differs by a third of a second, which a long line is longer than. So the end with
// the lower number begins anew the moment it sees the answer to what it has forgotten.
// By then the other's is on no line any more, and nothing crosses.
type simultaneous struct {
	again func(paths.Key) // begins a handshake anew

	mu        sync.Mutex
	arbiters  []*arbiter
	initiated map[uint32]started // by the number of the handshake
}

// started is whom a handshake was for. Where it was sent does not tell: before a path
// is proved it goes to several places.
type started struct {
	who paths.Key
	at  time.Time
}

// rememberFor is how long a handshake is remembered: WireGuard has begun another by then.
const rememberFor = 2 * device.RekeyTimeout

// arbiter returns one that tells of what crosses.
func (c *simultaneous) arbiter(b conn.Bind) *arbiter {
	t := &arbiter{Bind: b, simultaneous: c}
	c.arbiters = append(c.arbiters, t)
	return t
}

// began notes a handshake of ours.
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

// repair begins anew, once for a handshake of ours that crossed with one of theirs.
func (c *simultaneous) repair(ours, theirs uint32) {
	c.mu.Lock()
	a, ok := c.initiated[ours]
	arbiters := c.arbiters
	delete(c.initiated, ours)
	c.mu.Unlock()
	if ok {
		for _, t := range arbiters {
			t.forget(theirs) // or it would hold back what is begun now
		}
		c.again(a.who)
	}
}
