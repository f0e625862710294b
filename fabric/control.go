package fabric

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"rivulet/fabric/control"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/relay"
	"rivulet/fabric/rpc"
)

// openPort creates the control port, its routes and the relay.
func (f *Fabric) openPort() {
	exchanges := f.exchanges()
	f.Port = control.New(control.Config{
		Identity: f.cfg.Identity, Port: f.cfg.Port, TunnelAddress: f.cfg.TunnelAddress, Name: f.settings.name.get, Peers: f, Exchange: exchanges,
		Streams: f.handOver(), Problem: f.problems.report, Retry: f.cfg.Timing.Retry, LongestRetry: maxRetry * f.cfg.Timing.Retry, Log: f.log,
	})
	f.relay = relay.New(relay.Config{
		Identity: f.cfg.Identity, Name: f.settings.name.get, Address: f.inTunnel(), Allowed: f.settings.relays.get,
		Reaches: f.connected,
		Dial: func(ctx context.Context, id peer.ID) (net.Conn, error) {
			return f.dialPeer(id, dialLimit)(ctx, "tcp", "")
		},
		Exchange: exchanges, Log: f.log,
	}, f.Port)
	f.Handle("GET /v1/ping", http.HandlerFunc(f.answerPing))
	f.Handle("GET "+neighboursPath, http.HandlerFunc(f.reportNeighbours))
	f.Handle("POST "+pairing.Path, exchanges)
	f.Handle("POST "+pairing.EndPath, exchanges)
}

func (f *Fabric) inTunnel() netip.AddrPort {
	return netip.AddrPortFrom(f.cfg.TunnelAddress, f.cfg.Port)
}

// exchanges serves the exchange and its end. It refuses all requests while this cluster leaves.
func (f *Fabric) exchanges() http.Handler {
	mux := http.NewServeMux()
	inside := func(r *http.Request) bool { return control.Inside(r, f.cfg.TunnelAddress) }
	mux.Handle("POST "+pairing.Path, f.party.Handler(inside, f.received))
	mux.Handle("POST "+pairing.EndPath, f.party.EndHandler(f.endedByThem))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern == "" {
			control.NotServed(w, r)
		} else if f.leaving.Load() {
			rpc.Fail(w, http.StatusServiceUnavailable, leavingError(f.settings.name.get()))
		} else {
			mux.ServeHTTP(w, r)
		}
	})
}

// Dial opens a connection inside the tunnel, to an address as this cluster sees it. Its form is that of rest.Config.
func (f *Fabric) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if f.cfg.Dial != nil {
		return f.cfg.Dial(ctx, network, addr)
	}
	// From any other address the packets would leave on the LAN while the tunnel is down.
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(f.cfg.TunnelAddress, 0)), KeepAlive: 15 * time.Second}
	return d.DialContext(ctx, network, addr)
}

const dialLimit = 10 * time.Second

// dialPeer dials the peer's current control address, whatever address is requested. It has its own limit: an
// http.Transport keeps dialling after its caller has given up (two minutes for a lost peer), while the caller retries
// every second.
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

// Client returns an HTTP client that reaches only the peer's control address inside the tunnel, and the base URL. The
// client stays valid when addresses change.
func (f *Fabric) Client(id peer.ID) (*http.Client, string, error) {
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	m := f.members.all[string(id)]
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

// TLS returns what a client with its own TLS (client-go) needs to reach the peer: this cluster's certificate and key,
// the peer's certificate as the only authority, and the server name to verify.
func (f *Fabric) TLS(id peer.ID) (certPEM, keyPEM, serverCertPEM []byte, serverName string, err error) {
	r, ok := f.record(id)
	if !ok {
		return nil, nil, nil, "", noLink(id)
	}
	return f.cfg.Identity.CertPEM, f.cfg.Identity.KeyPEM, rpc.CertificatePEM(r.Certificate), string(id), nil
}
