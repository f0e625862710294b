package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/connlimit"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// Handle serves a route with h, in place of what served it before. It is served inside
// the tunnel only, to peers only; rpc.PeerID tells the handler which one asks. Patterns are
// those of http.ServeMux.
func (f *Fabric) Handle(pattern string, h http.Handler) {
	slot, have := f.handlers.LoadOrStore(pattern, new(atomic.Pointer[http.Handler]))
	now := slot.(*atomic.Pointer[http.Handler])
	now.Store(&h)
	if !have {
		f.routes.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { (*now.Load()).ServeHTTP(w, r) })
	}
}

// fromLAN bounds what anybody on the LAN can hold of the control port: an exchange
// takes milliseconds, and 256 connections that say nothing a few megabytes. In the
// tunnel an address tells whose it is before TLS does; streams last there, and a peer
// has its share of them whatever others have.
var (
	fromLAN = connlimit.Limits{Strangers: 256, PerSource: 32, PerOwner: 32, Deadline: 20 * time.Second,
		Peers: 256, PerPeer: 16, Lifetime: 20 * time.Second, Users: 512, PerUser: 32}
	fromPeers = connlimit.Limits{Strangers: 512, PerSource: 64, PerOwner: 128, Deadline: 10 * time.Second,
		Peers: 4096, PerPeer: 512}
)

// connection is the key of a request's connection in its context.
type connection struct{}

// counted counts the request's connection for its sender, a peer; false if it has too many.
func counted(r *http.Request, id peer.ID) bool {
	c, ok := r.Context().Value(connection{}).(net.Conn)
	return !ok || connlimit.Known(c, string(id))
}

// owner is the peer to which an address in the tunnel belongs, empty if there is none.
func (f *Fabric) owner(source netip.Addr) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		if m.Pinned() && m.Record().PeerMappedCIDR.IsValid() && m.Record().PeerMappedCIDR.Contains(source) {
			return string(m.ID())
		}
	}
	return ""
}

// peering is the exchange and its end; nobody gets through while we take our leave.
func (f *Fabric) peering(mux *http.ServeMux) {
	for path, h := range map[string]http.Handler{
		pairing.Path:    f.party.Handler(f.inside, f.heard),
		pairing.EndPath: f.party.EndHandler(f.endedByThem),
	} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			if f.leaving.Load() {
				rpc.Fail(w, http.StatusServiceUnavailable, leavingError(f.name()))
				return
			}
			h.ServeHTTP(w, r)
		})
	}
}

// serve keeps the control port open until ctx ends.
func (f *Fabric) serve(ctx context.Context) {
	wait := f.cfg.Timing.Retry
	for ctx.Err() == nil {
		l, err := rpc.Listen(f.cfg.Port)
		var e *rpc.Error
		if errors.As(err, &e) {
			f.problem("control-port", e)
			changes.Wait(ctx, wait)
			wait = min(2*wait, maxRetry*f.cfg.Timing.Retry)
			continue
		}
		f.problem("control-port", nil)
		server := rpc.NewServer(f.cfg.Identity, f.router(), f.log)
		server.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connection{}, c) }
		stop := context.AfterFunc(ctx, func() {
			grace, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			server.Shutdown(grace) //nolint:errcheck // streams are cut, as they are when a device goes
			server.Close()
		})
		limited := connlimit.Listen(l, f.insideAddr, connlimit.Side{Limits: fromLAN}, connlimit.Side{Limits: fromPeers, Owner: f.owner})
		if err := server.ServeTLS(f.giveStreams(server, part(limited, f.insideAddr, f.owner, &f.passed)), "", ""); !errors.Is(err, http.ErrServerClosed) {
			f.log.Warn("control port closed, opening it again", "err", err)
			changes.Wait(ctx, wait)
		}
		stop()
	}
}

// router parts the two sides: strangers may knock on the LAN, all else is for
// peers inside the tunnel.
func (f *Fabric) router() http.Handler {
	lan := http.NewServeMux()
	f.peering(lan)
	lan.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		rpc.Fail(w, http.StatusNotFound, &rpc.Error{Code: "not-found", Message: fmt.Sprintf("%.80q is not served outside the tunnel", r.URL.Path), Cure: "peer first; then ask inside the tunnel"})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, ok := rpc.PeerID(r)
		life := f.life(id)
		if ok && life != nil && !counted(r, id) {
			panic(http.ErrAbortHandler) // it has ended
		}
		if !f.inside(r) {
			lan.ServeHTTP(w, r)
			return
		}
		if !ok || life == nil {
			rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "not-a-peer", Message: fmt.Sprintf("%s is not a peer of %s", id.Short(), f.name()), Cure: "peer again"})
			return
		}
		// What is asked for ends with the peering, streams too.
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		f.routes.ServeHTTP(w, r.WithContext(ctx))
	})
}

// life is the time that a peer is one; nil if it is none.
func (f *Fabric) life(id peer.ID) context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.members[string(id)]; m != nil && m.Pinned() {
		return m.served
	}
	return nil
}

// inside reports whether the request came to our address in the tunnel.
func (f *Fabric) inside(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && f.insideAddr(local.AddrPort().Addr().Unmap())
}

func (f *Fabric) insideAddr(local netip.Addr) bool { return local == f.cfg.TunnelAddress }

// Dial opens a connection inside the tunnel, to an address as we see it. It has
// the form that rest.Config wants.
func (f *Fabric) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if f.cfg.Dial != nil {
		return f.cfg.Dial(ctx, network, addr)
	}
	// From any other address the packets would leave on the LAN if the tunnel is not up.
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(f.cfg.TunnelAddress, 0)), KeepAlive: 15 * time.Second}
	return d.DialContext(ctx, network, addr)
}

// dialLimit bounds a dial inside the tunnel.
const dialLimit = 10 * time.Second

// dialPeer dials the peer's control address of the moment, whatever is asked for. It
// has a limit of its own: an http.Transport goes on dialling when who asked has given
// up, for two minutes to a peer that is lost, and somebody asks again every second.
func (f *Fabric) dialPeer(id peer.ID, limit time.Duration) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		l, ok := f.Link(id)
		if !ok {
			return nil, noLink(id)
		}
		return f.Dial(ctx, network, l.Addr.String())
	}
}

func noLink(id peer.ID) error {
	return fmt.Errorf("fabric: there is no tunnel to %s: see `rivulet peers`", id.Short())
}

// Client returns an HTTP client that reaches the peer's control address inside the
// tunnel and nobody else, and the URL to begin paths with. The client stays good
// when addresses change.
func (f *Fabric) Client(id peer.ID) (*http.Client, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[string(id)]
	if m == nil {
		return nil, "", noLink(id)
	}
	l, ok := m.Link()
	if !ok {
		return nil, "", noLink(id)
	}
	if m.client == nil {
		m.client = &http.Client{
			Transport: &http.Transport{
				TLSClientConfig:        rpc.ClientTLS(f.cfg.Identity, id),
				DialContext:            f.dialPeer(id, dialLimit),
				TLSHandshakeTimeout:    10 * time.Second,
				ForceAttemptHTTP2:      true,
				HTTP2:                  &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
				MaxResponseHeaderBytes: 64 << 10,
				IdleConnTimeout:        time.Minute,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return m.client, "https://" + l.Addr.String(), nil
}

// TLS returns what a client that brings its own TLS (client-go) needs to reach the
// peer: our certificate and key, the peer's certificate as the only authority, and
// the server name to verify.
func (f *Fabric) TLS(id peer.ID) (certPEM, keyPEM, serverCertPEM []byte, serverName string, err error) {
	r, ok := f.record(id)
	if !ok {
		return nil, nil, nil, "", noLink(id)
	}
	return f.cfg.Identity.CertPEM, f.cfg.Identity.KeyPEM, rpc.CertificatePEM(r.Certificate), string(id), nil
}
