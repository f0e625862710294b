package fabric

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// Two clusters of which neither reaches the other, but both a third, speak to each
// other through that one: it splices two requests, and they have their own TLS
// inside. It learns who speaks to whom and nothing else. Only peers of the third are
// carried, to its peers, and at the other end there is the peering exchange alone;
// trust is as with any stranger who is on no link.
//
//	a ── POST /v1/carry/<b> ──▶ c ── POST /v1/carried ──▶ b
//	a ◀════════ TLS of a and b, POST /v1/peering ═══════▶ b

const (
	relayProtocol = "rivulet-carry"
	relayTime     = 20 * time.Second // for one connection
	relayBytes    = 512 << 10        // in each direction
	relayPerPeer  = 4                // at once, for one that asks
	relayTotal    = 16
	maxRelays     = 4 // asked for one exchange
)

// exchangeRelay is the state of all that.
type exchangeRelay struct {
	f       *Fabric
	arrived *connQueue // for us

	mu  sync.Mutex
	all []*relayed // under way, the longest there first
}

// relayed is one connection that is carried for a peer.
type relayed struct {
	from peer.ID
	end  context.CancelFunc
}

func newExchangeRelay(f *Fabric) *exchangeRelay {
	c := &exchangeRelay{f: f, arrived: &connQueue{conns: make(chan net.Conn, relayTotal), closed: make(chan struct{}), addr: f.inTunnel()}}
	f.routes.HandleFunc("POST /v1/carry/{id}", c.forward)
	f.routes.HandleFunc("POST /v1/carried", c.take)
	f.routes.HandleFunc("GET "+neighboursPath, f.tellNeighbours)
	return c
}

func (f *Fabric) inTunnel() *net.TCPAddr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(f.cfg.TunnelAddress, f.cfg.Port))
}

// serve answers what was carried to us until ctx ends: the exchange, and no more.
func (c *exchangeRelay) serve(ctx context.Context) {
	mux := http.NewServeMux()
	c.f.peering(mux)
	server := rpc.NewServer(c.f.cfg.Identity, mux, c.f.log)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ServeTLS(c.arrived, "", ""); err != nil && !errors.Is(err, http.ErrServerClosed) {
		c.f.log.Warn("nobody is carried here any more; restart rivulet", "err", err)
	}
}

// enter counts one connection of a peer, which end ends, and returns nil if it is one too
// many. When all are taken, the peer that has most gives its oldest up for one that has
// fewer: a few peers do not keep the others out.
func (c *exchangeRelay) enter(from peer.ID, end context.CancelFunc) *relayed {
	c.mu.Lock()
	defer c.mu.Unlock()
	by, worst := map[peer.ID]int{}, from
	for _, r := range c.all {
		if by[r.from]++; by[r.from] > by[worst] {
			worst = r.from
		}
	}
	if by[from] >= relayPerPeer {
		return nil
	}
	if len(c.all) >= relayTotal {
		if by[worst] <= by[from]+1 {
			return nil
		}
		i := slices.IndexFunc(c.all, func(r *relayed) bool { return r.from == worst })
		c.all[i].end()
		c.all = slices.Delete(c.all, i, i+1)
	}
	r := &relayed{from, end}
	c.all = append(c.all, r)
	return r
}

func (c *exchangeRelay) leave(r *relayed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(o *relayed) bool { return o == r })
}

// carry takes a peer's connection on to another peer.
func (c *exchangeRelay) forward(w http.ResponseWriter, r *http.Request) {
	from, _ := rpc.PeerID(r)
	to := peer.ID(r.PathValue("id"))
	f := c.f
	f.mu.Lock()
	m := f.members[string(to)]
	there := m != nil && m.Pinned() && m.State() == peer.Connected && to != from
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.Context(), relayTime)
	defer cancel()
	var mine *relayed
	if f.relays() && there {
		mine = c.enter(from, cancel)
	}
	switch {
	case !f.relays():
		rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "no-relay", Message: f.name() + " carries nothing for others", Cure: "set tunnel.relay to true there"})
		return
	case !there:
		rpc.Fail(w, http.StatusNotFound, &rpc.Error{Code: "not-here", Message: fmt.Sprintf("%s has no such peer, or does not reach it", f.name()), Cure: "wait until it is connected there"})
		return
	case mine == nil:
		rpc.Fail(w, http.StatusServiceUnavailable, &rpc.Error{Code: "busy", Message: f.name() + " carries too much at this moment; it is tried again"})
		return
	}
	defer c.leave(mine)
	next, err := f.upgrade(ctx, to, "/v1/carried")
	if err != nil {
		rpc.Fail(w, http.StatusBadGateway, &rpc.Error{Code: "not-here", Message: fmt.Sprintf("%s does not reach it now", f.name()), Cure: "wait until it is connected there"})
		return
	}
	defer next.Close()
	conn, err := switched(w)
	if err != nil {
		return
	}
	defer conn.Close()
	f.log.Info("carrying a peering", "from", from.Short(), "to", to.Short())
	splice(ctx, conn, next)
}

// take is the far end.
func (c *exchangeRelay) take(w http.ResponseWriter, r *http.Request) {
	conn, err := switched(w)
	if err != nil {
		return
	}
	// The addresses say that it came through the tunnel and from no link.
	carried := &farConn{Conn: conn, local: c.arrived.addr, done: make(chan struct{})}
	defer carried.Close()
	select {
	case c.arrived.conns <- carried:
	default:
		return
	}
	select { // the request lasts as long as the connection, and ends with the peering
	case <-carried.done:
	case <-r.Context().Done():
	case <-time.After(relayTime):
	}
}

// splice copies both ways until one side ends or has had enough.
func splice(ctx context.Context, a, b net.Conn) {
	stop := context.AfterFunc(ctx, func() { a.Close(); b.Close() })
	defer stop()
	var done sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		done.Go(func() {
			io.CopyN(way[0], way[1], relayBytes) //nolint:errcheck // either end may hang up
			a.Close()
			b.Close()
		})
	}
	done.Wait()
}

// switched answers that what follows is another protocol, and returns the connection.
func switched(w http.ResponseWriter) (net.Conn, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		rpc.Fail(w, http.StatusUpgradeRequired, &rpc.Error{Code: "bad-request", Message: "this needs HTTP/1.1"})
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(relayTime)) //nolint:errcheck // it fails on use
	if _, err := conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + relayProtocol + "\r\n\r\n")); err != nil {
		conn.Close()
		return nil, err
	}
	return &readConn{Conn: conn, r: rw.Reader}, nil
}

// upgrade asks a peer, inside the tunnel, for another protocol at the path.
func (f *Fabric) upgrade(ctx context.Context, id peer.ID, path string) (net.Conn, error) {
	raw, err := f.dialPeer(id, dialLimit)(ctx, "tcp", "")
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	conn := tls.Client(raw, rpc.ClientTLS(f.cfg.Identity, id))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://peer"+path, nil)
	if err == nil {
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", relayProtocol)
		err = req.Write(conn) // the handshake is part of it
	}
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("fabric: %w", err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("fabric: %w", err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body.Close()
		raw.Close()
		return nil, fmt.Errorf("fabric: %s answered %d", id.Short(), resp.StatusCode)
	}
	return &readConn{Conn: conn, r: r}, nil
}

// exchangeCarried does the exchange through one of our peers.
func (f *Fabric) exchangeRelayed(ctx context.Context, id peer.ID) (peer.Record, error) {
	err := noLink(id)
	for _, via := range f.relaysTo(id) {
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			return f.upgrade(ctx, via, "/v1/carry/"+string(id))
		}
		r, e := f.party.Exchange(ctx, pairing.PostTo(f.cfg.Identity, id, f.inTunnel().AddrPort(), dial))
		if e == nil {
			f.log.Info("peering was carried", "peer", r.Name, "id", id.Short(), "via", via.Short())
			return r, nil
		}
		if err = worse(err, e); pairing.Refused(e) || ctx.Err() != nil {
			break
		}
	}
	return peer.Record{}, err
}

// carriers are peers who may reach the cluster, the nearest first.
func (f *Fabric) relaysTo(id peer.ID) (out []peer.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var near []*member
	for _, m := range f.members {
		if m.Pinned() && m.ID() != id && m.State() == peer.Connected {
			near = append(near, m)
		}
	}
	slices.SortFunc(near, func(a, b *member) int { return cmp.Or(cmp.Compare(a.RTT(), b.RTT()), cmp.Compare(a.ID(), b.ID())) })
	for _, m := range near[:min(len(near), maxRelays)] {
		out = append(out, m.ID())
	}
	return out
}

// reachable reports whether anybody takes a connection at one of the addresses. It
// asks all at once, so that who is behind a NAT is told apart in two seconds.
func reachable(ctx context.Context, addrs []netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	got := make(chan bool, len(addrs))
	for _, a := range addrs {
		go func() {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.String())
			if err == nil {
				c.Close()
			}
			got <- err == nil
		}()
	}
	for range addrs {
		if <-got {
			return true
		}
	}
	return false
}

// connQueue is a listener of connections that come otherwise.
type connQueue struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	addr   *net.TCPAddr
}

func (q *connQueue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

func (q *connQueue) Close() error   { q.once.Do(func() { close(q.closed) }); return nil }
func (q *connQueue) Addr() net.Addr { return q.addr }

// readConn is a connection of which a reader holds the beginning.
type readConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *readConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// farConn is a connection that was carried.
type farConn struct {
	net.Conn
	local *net.TCPAddr
	done  chan struct{}
	once  sync.Once
}

func (c *farConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is nobody's: who is at the other end is what TLS says.
func (c *farConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero} }

func (c *farConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}
