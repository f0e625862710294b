// Package control is a cluster's control port: one TCP port on all addresses, over mutual TLS.
//
//	on the LAN         the peering exchange and its end, for everybody; passed server names (sni.go)
//	inside the tunnel  the same, and the routes of Handle, for peers only
//	streams            connections that carry the tunnel where UDP is blocked: handed over (rpc.Handover)
//
// It reads the peers through Peers and writes nothing. A peer's requests end with the peering. Connections are limited
// separately for strangers, peers, pods of peers and users (connlimit). A port that cannot be opened is reported as a
// problem with a cure, and retried.
package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/connlimit"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

type Peers interface {
	// Life returns a context that ends with the peering; nil if the cluster is no peer.
	Life(peer.ID) context.Context
	// Owner is the peer that owns an address in the tunnel, empty if there is none.
	Owner(source netip.Addr) string
}

// Config is what a Port is made of. All fields are needed.
type Config struct {
	Identity rpc.Identity
	Port     uint16
	// TunnelAddress is this cluster's address in the tunnel: only peers connect to it.
	TunnelAddress netip.Addr
	Name          func() string
	Peers         Peers
	// Exchange serves the exchange and its end.
	Exchange http.Handler
	// Streams takes over a connection with the bytes already read from it.
	Streams rpc.Handover
	// Problem sets the problem of the port; nil clears it.
	Problem func(code string, e *rpc.Error)
	// Retry is the first wait before a port that cannot be opened is retried, LongestRetry the longest one.
	Retry, LongestRetry time.Duration
	Log                 *slog.Logger
}

// Port is the control port. Its methods may be called concurrently.
type Port struct {
	cfg      Config
	routes   *http.ServeMux // inside the tunnel
	handlers sync.Map       // by pattern: *atomic.Pointer[http.Handler]
	names    serverNames
	tried    chan struct{}
	first    sync.Once
	// proved has the requests of peers inside the tunnel, by ID, unproved those of others there, such as pods at a peer.
	proved, unproved httpserver.Gate
}

const (
	// peerRequests bounds the requests of one peer under way, watches and sessions included: a consumer has about ten
	// for each of its namespaces, of which a provider takes a hundred. allRequests bounds those of all: two hundred
	// peers with two namespaces each leave room for some with many. peerHeaders bounds the headers of one peer's, bytes.
	peerRequests = 2048
	allRequests  = 8 * peerRequests
	peerHeaders  = 3 << 20
)

// New returns the port; Serve opens it.
func New(cfg Config) *Port {
	return &Port{cfg: cfg, routes: http.NewServeMux(), tried: make(chan struct{}),
		proved:   httpserver.Gate{Each: peerRequests, Total: allRequests, Bytes: peerHeaders},
		unproved: httpserver.Gate{Each: 16, Total: 64, Bytes: peerHeaders}}
}

// Tried is closed when Serve has opened the port, or could not: a device that announces itself before that is called in
// vain.
func (p *Port) Tried() <-chan struct{} { return p.tried }

// Handle serves a route with h, in place of its previous handler, inside the tunnel and to peers only. rpc.PeerID names
// the requesting peer. Patterns are those of http.ServeMux.
func (p *Port) Handle(pattern string, h http.Handler) {
	slot, have := p.handlers.LoadOrStore(pattern, new(atomic.Pointer[http.Handler]))
	now := slot.(*atomic.Pointer[http.Handler])
	now.Store(&h)
	if !have {
		p.routes.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { (*now.Load()).ServeHTTP(w, r) })
	}
}

// connection is the key of a request's connection in its context.
type connection struct{}

// counted counts the request's connection for its peer; false if the peer has too many.
func counted(r *http.Request, id peer.ID) bool {
	c, ok := r.Context().Value(connection{}).(net.Conn)
	return !ok || connlimit.Known(c, string(id))
}

// Serve keeps the port open until ctx ends.
func (p *Port) Serve(ctx context.Context) {
	wait := changes.Backoff{First: p.cfg.Retry, Longest: p.cfg.LongestRetry}
	for ctx.Err() == nil {
		l, err := rpc.Listen(p.cfg.Port)
		p.first.Do(func() { close(p.tried) })
		var e *rpc.Error
		if errors.As(err, &e) {
			p.cfg.Problem("control-port", e)
			wait.Wait(ctx)
			continue
		}
		p.cfg.Problem("control-port", nil)
		server := rpc.NewServer(httpserver.Peers, p.cfg.Identity, p.handler(), p.cfg.Log)
		server.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connection{}, c) }
		p.cfg.Streams.Watch(server.TLSConfig)
		server.TLSConfig.GetConfigForClient = p.plain(server.TLSConfig.GetConfigForClient)
		stop := context.AfterFunc(ctx, func() {
			grace, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			server.Shutdown(grace) //nolint:errcheck // streams are cut, as when a device is switched off
			server.Close()
		})
		inside := func(local netip.Addr) bool { return local == p.cfg.TunnelAddress }
		limited := connlimit.Listen(l, inside, connlimit.Side{Limits: httpserver.Strangers.Conns}, connlimit.Side{Limits: httpserver.Peers.Conns, Owner: p.cfg.Peers.Owner})
		if err := server.ServeTLS(p.cfg.Streams.Listen(p.route(limited)), "", ""); !errors.Is(err, http.ErrServerClosed) {
			p.cfg.Log.Warn("control port closed, opening it again", "err", err)
			wait.Wait(ctx)
		}
		stop()
	}
}

// plain gives strangers HTTP/1.1: everybody on the LAN, where the exchange is all that there is. Next decides about
// the connection first.
func (p *Port) plain(next func(*tls.ClientHelloInfo) (*tls.Config, error)) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	onLAN := rpc.ServerTLS(p.cfg.Identity)
	onLAN.NextProtos = []string{"http/1.1"}
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if c, err := next(hello); c != nil || err != nil || p.inside(hello.Conn.LocalAddr()) {
			return c, err
		}
		return onLAN, nil
	}
}

// handler separates the two sides: strangers reach only the exchange on the LAN, all other routes need a peer inside
// the tunnel.
func (p *Port) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, ok := rpc.PeerID(r)
		life := p.cfg.Peers.Life(id)
		if ok && life != nil && !counted(r, id) {
			panic(http.ErrAbortHandler) // the peering has ended
		}
		if !Inside(r, p.cfg.TunnelAddress) {
			p.cfg.Exchange.ServeHTTP(w, r)
			return
		}
		if !ok || life == nil {
			p.unproved.Serve(p.owner(r), w, r, func(w http.ResponseWriter, _ *http.Request) {
				rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "not-a-peer", Message: fmt.Sprintf("%s is not a peer of %s", id.Short(), p.cfg.Name()), Cure: "peer again"})
			})
			return
		}
		p.proved.Serve(string(id), w, r, func(w http.ResponseWriter, r *http.Request) {
			// A request ends with the peering, and so do streams.
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(life, cancel)()
			p.routes.ServeHTTP(w, r.WithContext(ctx))
		})
	})
}

// NotServed answers a request for an unknown route.
func NotServed(w http.ResponseWriter, r *http.Request) {
	rpc.Fail(w, http.StatusNotFound, &rpc.Error{Code: "not-found", Message: fmt.Sprintf("%.80q is not served outside the tunnel", r.URL.Path), Cure: "peer first; then ask inside the tunnel"})
}

// Inside reports whether the request came to address, this cluster's address in the tunnel.
func Inside(r *http.Request, address netip.Addr) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && local.AddrPort().Addr().Unmap() == address
}

func (p *Port) inside(local net.Addr) bool {
	a, ok := local.(*net.TCPAddr)
	return ok && a.AddrPort().Addr().Unmap() == p.cfg.TunnelAddress
}
