// Package connlimit limits the connections of a listener per party, so that no party keeps others out, however many
// connections and addresses it has.
//
// A connection belongs to a stranger until Known names its peer. Strangers have few places and a short deadline. A new
// stranger is always admitted: it replaces the oldest connection of the stranger that has most. Connections of peers
// are counted per peer. When all places are taken, the peer with most connections loses one, or gets no more if the new
// connection is its own.
//
// It reads addresses and the clock and writes nothing. Closed connections are reset, so that nothing stays in the
// kernel.
package connlimit

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Limits are those of one side of a listener.
type Limits struct {
	// Strangers bounds unidentified connections: in total, per address and per owner of addresses.
	Strangers, PerSource, PerOwner int
	// Deadline is how long a connection may remain unidentified.
	Deadline time.Duration
	// Peers bounds connections of peers in total, PerPeer those of one peer.
	Peers, PerPeer int
	// Lifetime ends every connection except Lasting ones; 0 is no limit for identified connections.
	Lifetime time.Duration
	// Users bounds Lasting connections in total, PerUser those of one user.
	Users, PerUser int
}

type Side struct {
	Limits
	// Owner returns the owner of an address before the connection is identified: all addresses of an owner count as one
	// stranger. If it is nil or returns "", each address counts for itself.
	Owner func(source netip.Addr) string
}

// Listener is a listener with two sides. The local address of a connection decides its side.
type Listener struct {
	net.Listener
	inside        func(local netip.Addr) bool
	outer, within *group
}

// Listen limits l: within applies to connections for whose local address inside returns true, outer to the others.
func Listen(l net.Listener, inside func(local netip.Addr) bool, outer, within Side) *Listener {
	return &Listener{Listener: l, inside: inside, outer: newGroup(outer), within: newGroup(within)}
}

func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if l.inside(address(c.LocalAddr())) {
		return l.within.admit(c), nil
	}
	return l.outer.admit(c), nil
}

// Known assigns a connection to a peer. The connection may be wrapped in others that have NetConn. If the peer has too
// many, it closes the connection and returns false. Connections of other listeners are not counted. It may be called
// again.
func Known(c net.Conn, peer string) bool {
	counted := below(c)
	return counted == nil || counted.group.known(counted, peer)
}

// Lasting is Known for the connection of an authenticated user: it has no lifetime and is counted apart from peers.
func Lasting(c net.Conn, user string) bool {
	counted := below(c)
	return counted == nil || counted.group.lasting(counted, user)
}

// Admitting closes connections of hosts that are not admitted, before their first byte; below a Listener they take no
// place.
type Admitting struct {
	net.Listener
	Admit func(netip.Addr) bool
}

func (a Admitting) Accept() (net.Conn, error) {
	for {
		c, err := a.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if from, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil && a.Admit(from.Addr().Unmap()) {
			return c, nil
		}
		c.Close()
	}
}

// key is that of a connection in the context of its requests.
type key struct{}

// InContext is for http.Server.ConnContext: LastingRequest then finds the connection of a request.
func InContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// LastingRequest is Lasting for the connection of a request; false without InContext.
func LastingRequest(r *http.Request, user string) bool {
	c, ok := r.Context().Value(key{}).(net.Conn)
	return ok && Lasting(c, user)
}

// below returns the Listener's connection that c is or wraps, or nil.
func below(c net.Conn) *conn {
	for {
		if counted, ok := c.(*conn); ok {
			return counted
		}
		inner, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = inner.NetConn()
	}
}

// group holds the connections of one side.
type group struct {
	Side
	mu                      sync.Mutex
	strangers, peers, users pool
}

func newGroup(s Side) *group { return &group{Side: s} }

// pool holds connections, oldest first, and how many each party has.
type pool struct {
	conns []*conn
	by    map[string]int
}

type conn struct {
	net.Conn
	group  *group
	source netip.Addr
	closed sync.Once

	// The fields below are guarded by group.mu.
	party  string
	pool   *pool // nil when the connection has ended
	timers []*time.Timer
}

// Close closes the connection. It may be called more than once.
func (c *conn) Close() error {
	c.closed.Do(c.leave)
	return c.Conn.Close()
}

func (c *conn) NetConn() net.Conn { return c.Conn }

// CloseWrite is for callers that find it by a type assertion.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

func (c *conn) end() {
	c.closed.Do(c.leave)
	reset(c.Conn)
}

func (c *conn) leave() {
	c.group.mu.Lock()
	defer c.group.mu.Unlock()
	for _, t := range c.timers {
		t.Stop()
	}
	c.group.drop(c)
}

func (d *group) admit(nc net.Conn) net.Conn {
	c := &conn{Conn: nc, group: d, source: Source(address(nc.RemoteAddr()))}
	if d.Owner != nil {
		c.party = d.Owner(address(nc.RemoteAddr()))
	}
	if c.party == "" {
		c.party = c.source.String()
	}
	d.mu.Lock()
	p, victim := &d.strangers, (*conn)(nil)
	switch {
	case p.of(c.party, c.source) >= d.PerSource:
		victim = p.oldest(c.party, c.source)
	case p.by[c.party] >= d.PerOwner:
		victim = p.oldest(c.party, p.busiest(c.party))
	case len(p.conns) >= d.Strangers:
		worst := p.worst()
		victim = p.oldest(worst, p.busiest(worst))
	}
	d.drop(victim)
	d.put(c, p)
	if d.Deadline > 0 {
		c.timers = append(c.timers, time.AfterFunc(d.Deadline, func() { d.overdue(c) }))
	}
	if d.Lifetime > 0 {
		c.timers = append(c.timers, time.AfterFunc(d.Lifetime, c.end))
	}
	d.mu.Unlock()
	if victim != nil {
		victim.end()
	}
	return c
}

// known counts c for a peer, if necessary in place of another connection.
func (d *group) known(c *conn, peer string) bool {
	return d.count(c, peer, &d.peers, d.Peers, d.PerPeer)
}

// lasting counts c for a user and removes its lifetime.
func (d *group) lasting(c *conn, user string) bool {
	if !d.count(c, user, &d.users, d.Users, d.PerUser) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range c.timers {
		t.Stop()
	}
	return true
}

// count moves c to pool p, which has at most most connections, and each per party.
func (d *group) count(c *conn, peer string, p *pool, most, each int) bool {
	d.mu.Lock()
	victim := (*conn)(nil)
	if c.pool == nil || c.pool == p && c.party == peer {
		over := c.pool == nil
		d.mu.Unlock()
		return !over
	}
	refused := false
	if p.by[peer] >= each {
		// The address with most of the peer's connections makes room for another address.
		busiest := p.busiest(peer)
		refused = p.of(peer, busiest) <= p.of(peer, c.source)+1
		victim = p.oldest(peer, busiest)
	} else if len(p.conns) >= most {
		worst := p.worst()
		refused = p.by[worst] <= p.by[peer]+1
		victim = p.oldest(worst, p.busiest(worst))
	}
	if refused {
		victim = c
	}
	d.drop(victim)
	if !refused {
		d.drop(c)
		c.party = peer
		d.put(c, p)
	}
	d.mu.Unlock()
	if victim != nil {
		victim.end()
	}
	return !refused
}

// overdue ends a connection that was not identified in time.
func (d *group) overdue(c *conn) {
	d.mu.Lock()
	stranger := c.pool == &d.strangers
	d.mu.Unlock()
	if stranger {
		c.end()
	}
}

// The functions below are called with mu held.

func (d *group) put(c *conn, p *pool) {
	if p.by == nil {
		p.by = map[string]int{}
	}
	c.pool = p
	p.conns = append(p.conns, c)
	p.by[c.party]++
}

// drop forgets a connection, if it is there.
func (d *group) drop(c *conn) {
	if c == nil || c.pool == nil {
		return
	}
	p := c.pool
	c.pool = nil
	for i, o := range p.conns {
		if o == c {
			p.conns = append(p.conns[:i], p.conns[i+1:]...)
			break
		}
	}
	if p.by[c.party]--; p.by[c.party] == 0 {
		delete(p.by, c.party)
	}
}

// of counts the connections of a party from one source.
func (p *pool) of(party string, source netip.Addr) (n int) {
	if p.by[party] == 0 {
		return 0
	}
	for _, c := range p.conns {
		if c.party == party && c.source == source {
			n++
		}
	}
	return n
}

// oldest is the oldest of a party's connections from one source.
func (p *pool) oldest(party string, source netip.Addr) *conn {
	for _, c := range p.conns {
		if c.party == party && c.source == source {
			return c
		}
	}
	return nil
}

// busiest is the source with most of a party's connections; the oldest of equals.
func (p *pool) busiest(party string) (source netip.Addr) {
	counts := map[netip.Addr]int{}
	for _, c := range p.conns {
		if c.party == party {
			counts[c.source]++
		}
	}
	most := 0
	for _, c := range p.conns {
		if c.party == party && counts[c.source] > most {
			most, source = counts[c.source], c.source
		}
	}
	return source
}

// worst is the party with most connections; the oldest of equals.
func (p *pool) worst() (party string) {
	most := 0
	for _, c := range p.conns {
		if n := p.by[c.party]; n > most {
			most, party = n, c.party
		}
	}
	return party
}

// Source is what counts as one sender: an IPv4 address or an IPv6 network, since a machine has many addresses in its
// network. Link-local addresses count one by one.
func Source(a netip.Addr) netip.Addr {
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
