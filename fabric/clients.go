package fabric

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// clients connects to peers, inside the tunnel only.
type clients struct {
	identity rpc.Identity
	address  netip.Addr // this cluster's, in the tunnel
	// dial replaces dialling from address; it may be nil.
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	members *members
}

// Dial opens a connection inside the tunnel, to an address as this cluster sees it. Its form is that of rest.Config.
func (c *clients) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if c.dial != nil {
		return c.dial(ctx, network, addr)
	}
	// From any other address the packets would leave on the LAN while the tunnel is down.
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.address, 0)), KeepAlive: keepAlive}
	return d.DialContext(ctx, network, addr)
}

const (
	dialLimit = 10 * time.Second
	// keepAlive is longer than the interval of what is sent anyway. The connections to a lost peer are closed.
	keepAlive = 75 * time.Second
	// quiet is how long a connection with requests may bring nothing before the peer is asked whether it still has it: a
	// peer that is back from a power cut within seconds was never lost, and says nothing of the streams that it had.
	quiet = 20 * time.Second
)

// conns are the open connections of a client.
type conns struct {
	mu   sync.Mutex
	open map[*trackedConn]struct{}
}

type trackedConn struct {
	net.Conn
	of *conns
}

func (c *trackedConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (t *conns) track(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		tracked := &trackedConn{c, t}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.open == nil {
			t.open = map[*trackedConn]struct{}{}
		}
		t.open[tracked] = struct{}{}
		return tracked, nil
	}
}

// close closes them.
func (t *conns) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.open {
		c.Conn.Close()
	}
	clear(t.open)
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// dialPeer dials the peer's current control address, whatever address is requested. It has its own limit: an
// http.Transport keeps dialling after its caller has given up (two minutes for a lost peer), while the caller retries
// every second.
func (c *clients) dialPeer(id peer.ID, limit time.Duration) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		l, ok := c.members.Link(id)
		if !ok {
			return nil, noLink(id)
		}
		return c.Dial(ctx, network, l.Addr.String())
	}
}

func noLink(id peer.ID) error {
	return fmt.Errorf("fabric: there is no tunnel to %s: see `rivulet peers`", id.Short())
}

// Client returns an HTTP client that reaches only the peer's control address inside the tunnel, and the base URL. The
// client stays valid when addresses change.
func (c *clients) Client(id peer.ID) (*http.Client, string, error) {
	c.members.mu.Lock()
	defer c.members.mu.Unlock()
	m := c.members.byID(id)
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
				TLSClientConfig:        rpc.ClientTLS(c.identity, id),
				DialContext:            m.conns.track(c.dialPeer(id, dialLimit)),
				TLSHandshakeTimeout:    10 * time.Second,
				ForceAttemptHTTP2:      true,
				HTTP2:                  &http.HTTP2Config{SendPingTimeout: quiet, PingTimeout: 5 * time.Second},
				MaxResponseHeaderBytes: 64 << 10,
				IdleConnTimeout:        time.Minute,
				DisableCompression:     true, // an answer is as long as what arrives
			},
			CheckRedirect: noRedirect,
		}
	}
	return m.client, "https://" + l.Addr.String(), nil
}

// noRedirect is for http.Client: a peer does not send this cluster elsewhere.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// TLS returns what a client with its own TLS (client-go) needs to reach the peer: this cluster's certificate and key,
// the peer's certificate as the only authority, and the server name to verify.
func (c *clients) TLS(id peer.ID) (certPEM, keyPEM, serverCertPEM []byte, serverName string, err error) {
	r, ok := c.members.record(id)
	if !ok {
		return nil, nil, nil, "", noLink(id)
	}
	return c.identity.CertPEM, c.identity.KeyPEM, rpc.CertificatePEM(r.Certificate), string(id), nil
}
