// Package relay relays the exchange of two clusters that do not reach each other, but both reach a third. That one
// splices two requests; the TLS inside is between the two, so the relay sees only who exchanges with whom. It relays
// only from and to its own peers, and only to the peering exchange; trust is that of any stranger without a common
// link.
//
//	a ── POST /v1/carry/<b> ──▶ c ── POST /v1/carried ──▶ b
//	a ◀════════ TLS of a and b, POST /v1/peering ═══════▶ b
//
// It writes nothing; its state ends with the process.
package relay

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/control"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

const (
	protocol = "rivulet-carry"
	// Limit is how long one connection lasts.
	Limit = 20 * time.Second
	bytes = 512 << 10 // in each direction
	// PerPeer bounds the connections relayed at once for one peer.
	PerPeer = 4
	total   = 16
)

// Config has the inputs of a Relay. All fields are needed.
type Config struct {
	Identity rpc.Identity
	Name     func() string
	// Address is this cluster's control address in the tunnel.
	Address netip.AddrPort
	// Allowed reports whether this device relays for others, Reaches whether a cluster is a peer that answers.
	Allowed func() bool
	Reaches func(peer.ID) bool
	// Dial opens a connection to a peer's control address in the tunnel.
	Dial func(context.Context, peer.ID) (net.Conn, error)
	// Exchange serves relayed connections to this cluster.
	Exchange http.Handler
	Log      *slog.Logger
}

// Relay relays for others, and accepts relayed connections to this cluster.
type Relay struct {
	cfg     Config
	arrived *queue
	gate    Gate
}

// Gate counts the connections that are relayed: PerPeer for one party, Total for all.
type Gate struct {
	Total int

	mu  sync.Mutex
	all []*Relayed // under way, the oldest first
}

// Relayed is one connection relayed for a party.
type Relayed struct {
	from string
	end  context.CancelFunc
}

// New returns a Relay whose routes are served by port.
func New(cfg Config, port *control.Port) *Relay {
	c := &Relay{cfg: cfg, gate: Gate{Total: total}, arrived: &queue{conns: make(chan net.Conn, total), closed: make(chan struct{}), addr: net.TCPAddrFromAddrPort(cfg.Address)}}
	port.Handle("POST /v1/carry/{id}", http.HandlerFunc(c.forward))
	port.Handle("POST /v1/carried", http.HandlerFunc(c.take))
	return c
}

// Serve answers relayed exchanges until ctx ends.
func (c *Relay) Serve(ctx context.Context) {
	server := rpc.NewServer(httpserver.Strangers, c.cfg.Identity, c.cfg.Exchange, c.cfg.Log)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ServeTLS(c.arrived, "", ""); err != nil && !errors.Is(err, http.ErrServerClosed) {
		c.cfg.Log.Warn("nothing is carried here any more; restart rivulet", "err", err)
	}
}

// Dial opens a connection to the cluster through a common peer.
func (c *Relay) Dial(ctx context.Context, via, to peer.ID) (net.Conn, error) {
	return c.upgrade(ctx, via, "/v1/carry/"+string(to))
}

// Arrive accepts a connection that was relayed to this cluster. It returns when the connection has ended, ctx ends or
// the limit is reached.
func (c *Relay) Arrive(ctx context.Context, conn net.Conn) {
	// The addresses show that it came from no link.
	carried := &farConn{Conn: conn, local: c.arrived.addr, done: make(chan struct{})}
	defer carried.Close()
	select {
	case c.arrived.conns <- carried:
	default:
		return
	}
	select {
	case <-carried.done:
	case <-ctx.Done():
	case <-time.After(Limit):
	}
}

// Enter counts one connection of a party, which end ends, and returns nil if it is one too many. When all places are
// taken, the party with most connections loses its oldest to one with fewer, so that a few do not keep others out.
func (c *Gate) Enter(from string, end context.CancelFunc) *Relayed {
	c.mu.Lock()
	defer c.mu.Unlock()
	by, worst := map[string]int{}, from
	for _, r := range c.all {
		if by[r.from]++; by[r.from] > by[worst] {
			worst = r.from
		}
	}
	if by[from] >= PerPeer {
		return nil
	}
	if len(c.all) >= c.Total {
		if by[worst] <= by[from]+1 {
			return nil
		}
		i := slices.IndexFunc(c.all, func(r *Relayed) bool { return r.from == worst })
		c.all[i].end()
		c.all = slices.Delete(c.all, i, i+1)
	}
	r := &Relayed{from, end}
	c.all = append(c.all, r)
	return r
}

// Count returns how many are under way.
func (c *Gate) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

// Leave ends the count of a connection.
func (c *Gate) Leave(r *Relayed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(o *Relayed) bool { return o == r })
}

// forward relays a peer's connection to another peer.
func (c *Relay) forward(w http.ResponseWriter, r *http.Request) {
	from, _ := rpc.PeerID(r)
	to := peer.ID(r.PathValue("id"))
	there := to != from && c.cfg.Reaches(to)
	ctx, cancel := context.WithTimeout(r.Context(), Limit)
	defer cancel()
	var mine *Relayed
	if c.cfg.Allowed() && there {
		mine = c.gate.Enter(string(from), cancel)
	}
	switch {
	case !c.cfg.Allowed():
		rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "no-relay", Message: c.cfg.Name() + " carries nothing for others", Cure: "set tunnel.relay to true there"})
		return
	case !there:
		rpc.Fail(w, http.StatusNotFound, &rpc.Error{Code: "not-here", Message: fmt.Sprintf("%s has no such peer, or does not reach it", c.cfg.Name()), Cure: "wait until it is connected there"})
		return
	case mine == nil:
		rpc.Fail(w, http.StatusServiceUnavailable, &rpc.Error{Code: "busy", Message: c.cfg.Name() + " carries too much at this moment; it is tried again"})
		return
	}
	defer c.gate.Leave(mine)
	next, err := c.upgrade(ctx, to, "/v1/carried")
	if err != nil {
		rpc.Fail(w, http.StatusBadGateway, &rpc.Error{Code: "not-here", Message: fmt.Sprintf("%s does not reach it now", c.cfg.Name()), Cure: "wait until it is connected there"})
		return
	}
	defer next.Close()
	conn, err := Switch(w)
	if err != nil {
		return
	}
	defer conn.Close()
	c.cfg.Log.Info("carrying a peering", "from", from.Short(), "to", to.Short())
	Splice(ctx, conn, next)
}

// take accepts a relayed connection.
func (c *Relay) take(w http.ResponseWriter, r *http.Request) {
	if conn, err := Switch(w); err == nil {
		c.Arrive(r.Context(), conn) // the request lasts as long as the connection, and ends with the peering
	}
}

// Splice copies in both directions until one side ends or a bound is reached.
func Splice(ctx context.Context, a, b net.Conn) {
	stop := context.AfterFunc(ctx, func() { a.Close(); b.Close() })
	defer stop()
	var done sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		done.Go(func() {
			io.CopyN(way[0], way[1], bytes) //nolint:errcheck // either end may close
			a.Close()
			b.Close()
		})
	}
	done.Wait()
}

// Switch answers 101 Switching Protocols, and returns the connection.
func Switch(w http.ResponseWriter) (net.Conn, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		rpc.Fail(w, http.StatusUpgradeRequired, &rpc.Error{Code: "bad-request", Message: "this needs HTTP/1.1"})
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(Limit)) //nolint:errcheck // it fails on use
	if _, err := conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + protocol + "\r\n\r\n")); err != nil {
		conn.Close()
		return nil, err
	}
	return &control.Begun{Conn: conn, First: rw.Reader}, nil
}

// upgrade requests a protocol switch of a peer, inside the tunnel, at the path.
func (c *Relay) upgrade(ctx context.Context, id peer.ID, path string) (net.Conn, error) {
	raw, err := c.cfg.Dial(ctx, id)
	if err != nil {
		return nil, err
	}
	return Upgrade(ctx, raw, c.cfg.Identity, id, path)
}

// Upgrade requests a protocol switch of the cluster or broker id, to which raw leads, at the path.
func Upgrade(ctx context.Context, raw net.Conn, self rpc.Identity, id peer.ID, path string) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	conn := tls.Client(raw, rpc.ClientTLS(self, id))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://peer"+path, nil)
	if err == nil {
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", protocol)
		err = req.Write(conn) // includes the handshake
	}
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("relay: %w", err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("relay: %w", err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body.Close()
		raw.Close()
		return nil, fmt.Errorf("relay: %s answered %d", id.Short(), resp.StatusCode)
	}
	return &control.Begun{Conn: conn, First: r}, nil
}

// queue is a listener of relayed connections.
type queue struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	addr   *net.TCPAddr
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

func (q *queue) Close() error   { q.once.Do(func() { close(q.closed) }); return nil }
func (q *queue) Addr() net.Addr { return q.addr }

// farConn is a relayed connection.
type farConn struct {
	net.Conn
	local *net.TCPAddr
	done  chan struct{}
	once  sync.Once
}

func (c *farConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is unspecified: only TLS identifies the other end.
func (c *farConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero} }

func (c *farConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}
