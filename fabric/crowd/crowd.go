// Package crowd bounds what strangers can hold of a listener: connections in all
// and of one source, and how long each may last. Where strangers come from
// everywhere, a newcomer takes the place of the connection that has been there longest
// of whoever has most of them: somebody who only holds connections open, however
// many, loses them, and who comes with a short request is served.
//
// It reads addresses and the clock and writes nothing. What it closes, it resets, so
// that nothing stays in the kernel.
package crowd

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits are those of one side of a listener.
type Limits struct {
	Total, PerSource int
	// Lifetime ends every connection; 0 lets it last.
	Lifetime time.Duration
	// Replace makes room for a newcomer by ending an older connection. Else it is the
	// newcomer that has to go.
	Replace bool
}

// Listener is a listener with two sides, told apart by the local address of a connection.
type Listener struct {
	net.Listener
	inside        func(local netip.Addr) bool
	outer, within *crowd
}

// Listen puts limits on l: within for connections to local addresses of which inside
// says so, outer for the others.
func Listen(l net.Listener, inside func(local netip.Addr) bool, outer, within Limits) *Listener {
	return &Listener{Listener: l, inside: inside, outer: newCrowd(outer), within: newCrowd(within)}
}

// Accept returns the next connection that is within the limits.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		side := l.outer
		if l.inside(address(c.LocalAddr())) {
			side = l.within
		}
		if conn, ok := side.admit(c); ok {
			return conn, nil
		}
		reset(c)
	}
}

// crowd are the connections of one side.
type crowd struct {
	limits Limits
	mu     sync.Mutex
	n      int
	by     map[netip.Addr][]*conn // the longest there first
}

func newCrowd(l Limits) *crowd { return &crowd{limits: l, by: map[netip.Addr][]*conn{}} }

type conn struct {
	net.Conn
	crowd  *crowd
	source netip.Addr
	since  time.Time
	once   sync.Once
	timer  *time.Timer
}

// Close closes the connection, and may be called more than once.
func (c *conn) Close() error {
	c.once.Do(c.leave)
	return c.Conn.Close()
}

// NetConn returns the connection that is counted.
func (c *conn) NetConn() net.Conn { return c.Conn }

// CloseWrite is there for what looks for it.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

func (c *conn) end() {
	c.once.Do(c.leave)
	reset(c.Conn)
}

func (c *conn) leave() {
	c.crowd.mu.Lock()
	defer c.crowd.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	c.crowd.drop(c)
}

// admit lets a connection in, perhaps in place of another.
func (d *crowd) admit(nc net.Conn) (net.Conn, bool) {
	c := &conn{Conn: nc, crowd: d, source: source(address(nc.RemoteAddr())), since: time.Now()}
	d.mu.Lock()
	var victim *conn
	switch mine := d.by[c.source]; {
	case len(mine) >= d.limits.PerSource:
		victim = mine[0]
	case d.n >= d.limits.Total:
		victim = d.worst()
	}
	if victim != nil && !d.limits.Replace {
		d.mu.Unlock()
		return nil, false
	}
	if victim != nil {
		d.drop(victim)
	}
	d.by[c.source] = append(d.by[c.source], c)
	d.n++
	if d.limits.Lifetime > 0 {
		c.timer = time.AfterFunc(d.limits.Lifetime, c.end)
	}
	d.mu.Unlock()
	if victim != nil {
		victim.end()
	}
	return c, true
}

// worst is the longest there of the source that has most. It is called with mu held.
func (d *crowd) worst() (victim *conn) {
	most := 0
	for _, conns := range d.by {
		if n := len(conns); n > most || n == most && conns[0].since.Before(victim.since) {
			most, victim = n, conns[0]
		}
	}
	return victim
}

// drop forgets a connection, if it is there. It is called with mu held.
func (d *crowd) drop(c *conn) {
	conns := d.by[c.source]
	for i, o := range conns {
		if o == c {
			d.n--
			if len(conns) == 1 {
				delete(d.by, c.source)
			} else {
				d.by[c.source] = append(conns[:i:i], conns[i+1:]...)
			}
			return
		}
	}
}

// source is what counts as one sender: an IPv4 address, or a network of IPv6, where a
// machine has as many addresses as it likes. On the link each machine counts.
func source(a netip.Addr) netip.Addr {
	if a.Is4() || a.IsLinkLocalUnicast() {
		return a
	}
	p, err := a.WithZone("").Prefix(64)
	if err != nil {
		return a
	}
	return p.Addr()
}

func address(a net.Addr) netip.Addr {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return t.AddrPort().Addr().Unmap()
}

// reset closes without waiting for the other side.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0) //nolint:errcheck // it is closed either way
	}
	c.Close()
}
