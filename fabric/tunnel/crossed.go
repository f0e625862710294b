package tunnel

import (
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"rivulet/fabric/tunnel/paths"
)

// crossed mends two handshakes that crossed although tie looks after it: on a line
// whose round trip is longer than tieWindow, or on machines that are as slow, each
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
type crossed struct {
	mu    sync.Mutex
	again func(paths.Key) // nil before there is a device
	ties  []*tie
	asked map[uint32]asked // by the number of the handshake
}

// asked is whom a handshake was for. Where it was sent does not tell: before a path
// is proved it goes to several places.
type asked struct {
	who paths.Key
	at  time.Time
}

// crossedFor is how long a handshake is remembered: WireGuard has begun another by then.
const crossedFor = 2 * device.RekeyTimeout

// tie returns one that tells of what crosses.
func (c *crossed) tie(b conn.Bind) *tie {
	t := &tie{Bind: b, crossed: c}
	c.ties = append(c.ties, t)
	return t
}

// begin says how a handshake is begun anew.
func (c *crossed) begin(again func(paths.Key)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.again = again
}

// began notes a handshake of ours.
func (c *crossed) began(number uint32, to conn.Endpoint, now time.Time) {
	e, ok := to.(*paths.Endpoint)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked == nil {
		c.asked = map[uint32]asked{}
	}
	for n, a := range c.asked {
		if now.Sub(a.at) >= crossedFor {
			delete(c.asked, n)
		}
	}
	c.asked[number] = asked{who: e.Peer(), at: now}
}

// mend begins anew, once for a handshake of ours that crossed with one of theirs.
func (c *crossed) mend(ours, theirs uint32) {
	c.mu.Lock()
	a, ok := c.asked[ours]
	again, ties := c.again, c.ties
	delete(c.asked, ours)
	c.mu.Unlock()
	if ok && again != nil {
		for _, t := range ties {
			t.forget(theirs) // or it would hold back what is begun now
		}
		again(a.who)
	}
}

// Again makes WireGuard forget what it has agreed on with a peer and begin a handshake
// now, however short a time ago the last one was.
func (d wireguard) Again(public paths.Key) {
	if p := d.LookupPeer(device.NoisePublicKey(public)); p != nil {
		p.ExpireCurrentKeypairs()
		_ = p.SendHandshakeInitiation(false) // it tries again by itself
	}
}
