package control

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"rivulet/fabric/connlimit"
)

// A peer reaches one TCP port of this cluster, the control port at the tunnel's address. Pods at the peer reach the API
// server through it, too. The server name of TLS selects the destination: a connection to a passed name is handed over
// unanswered, all others belong to the control port.
//
//	own pod at a peer     ── kubernetes.default.svc ──▶ 7442 ──▶ handler ──▶ API server
//	peer's supervisor     ── <own ID>               ──▶ 7442 ──▶ routes
//	laptop, kubectl       ── kubernetes.rivulet     ──▶ 7442 on the LAN ──▶ handler ──▶ API server
//	browser, curl         ── any name, or none      ──▶ 7442 on the LAN ──▶ handler of Browsers
//
// Peers offer only TLS 1.3 and send an ID or no name. Browsers and similar clients offer 1.2, too.
//
// On the LAN a connection has the limits of a stranger until its handler identifies it (connlimit.Lasting).
type serverNames struct {
	mu            sync.RWMutex
	inside, onLAN map[string]func(net.Conn)
}

// Browsers is the name for PassLAN of clients that are no peer and request no other passed name.
const Browsers = "-"

// helloTimeout bounds the wait for the first TLS message, as the server's own timeout does.
const helloTimeout = 5 * time.Second

// Pass hands connections inside the tunnel for one of the server names to h, which owns them; a nil h ends this. It
// replaces earlier names. Only the client's address is verified: h has to authenticate it.
func (p *Port) Pass(h func(net.Conn), names ...string) { p.names.set(&p.names.inside, h, names) }

// PassLAN is Pass for connections from outside the tunnel. Each connection has its own goroutine for h.
func (p *Port) PassLAN(h func(net.Conn), names ...string) { p.names.set(&p.names.onLAN, h, names) }

func (p *serverNames) set(of *map[string]func(net.Conn), h func(net.Conn), names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if *of == nil {
		*of = map[string]func(net.Conn){}
	}
	for _, n := range names {
		if h == nil {
			delete(*of, n)
		} else {
			(*of)[n] = h
		}
	}
}

func (p *serverNames) handler(name string, inside, browser bool) func(net.Conn) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	of := p.onLAN
	if inside {
		of = p.inside
	}
	h := of[strings.ToLower(strings.TrimSuffix(name, "."))]
	if h == nil && browser {
		h = of[Browsers]
	}
	return h
}

// router is the control port's listener without the passed connections. Each connection has its own goroutine: a silent
// one does not delay others.
type router struct {
	net.Listener
	port   *Port
	ready  chan net.Conn
	failed chan error
	closed chan struct{}
	once   sync.Once
}

func (p *Port) route(l net.Listener) net.Listener {
	out := &router{Listener: l, port: p, ready: make(chan net.Conn), failed: make(chan error, 1), closed: make(chan struct{})}
	go out.accept()
	return out
}

func (r *router) accept() {
	for {
		c, err := r.Listener.Accept()
		if err != nil {
			r.failed <- err
			return
		}
		inside := r.port.inside(c.LocalAddr())
		go func() {
			name, browser, whole, err := serverName(c)
			if err != nil {
				c.Close()
			} else if h := r.port.names.handler(name, inside, browser); h != nil {
				// Pods at a peer use none of the peer's places.
				if !inside || connlimit.Known(c, r.port.podsOf(c)) {
					h(whole)
				}
			} else {
				r.hand(whole)
			}
		}()
	}
}

// podsOf names the party that a passed connection counts for.
func (p *Port) podsOf(c net.Conn) string {
	from, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return "pods"
	}
	return "pods of " + p.cfg.Peers.Owner(from.AddrPort().Addr().Unmap())
}

// owner names the party of a request that no peer has proved to be its own.
func (p *Port) owner(r *http.Request) string {
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	return p.cfg.Peers.Owner(from.Addr().Unmap())
}

func (r *router) hand(c net.Conn) {
	select {
	case r.ready <- c:
	case <-r.closed:
		c.Close()
	}
}

func (r *router) Accept() (net.Conn, error) {
	select {
	case c := <-r.ready:
		return c, nil
	case err := <-r.failed:
		r.failed <- err // for the next call
		return nil, err
	}
}

func (r *router) Close() error {
	r.once.Do(func() { close(r.closed) })
	return r.Listener.Close()
}

var errSeen = errors.New("fabric: seen")

// serverName reads the first TLS message. It returns the requested name, whether the client is no peer, and the
// connection with all bytes still unread. Without TLS the name is empty.
func serverName(c net.Conn) (name string, browser bool, unread net.Conn, err error) {
	if err := c.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return "", false, nil, err
	}
	var read bytes.Buffer
	err = tls.Server(tasted{io.TeeReader(c, &read)}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name, browser = h.ServerName, slices.Contains(h.SupportedVersions, tls.VersionTLS12)
		return nil, errSeen
	}}).Handshake()
	var record tls.RecordHeaderError
	if !errors.Is(err, errSeen) && !errors.As(err, &record) && read.Len() == 0 {
		return "", false, nil, err
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return "", false, nil, err
	}
	return name, browser, &Begun{Conn: c, First: io.MultiReader(&read, c)}, nil
}

// tasted is a connection that can only be read.
type tasted struct{ io.Reader }

func (tasted) Write(p []byte) (int, error)      { return len(p), nil }
func (tasted) Close() error                     { return nil }
func (tasted) LocalAddr() net.Addr              { return nil }
func (tasted) RemoteAddr() net.Addr             { return nil }
func (tasted) SetDeadline(time.Time) error      { return nil }
func (tasted) SetReadDeadline(time.Time) error  { return nil }
func (tasted) SetWriteDeadline(time.Time) error { return nil }

// Begun is a connection whose first bytes, in First, were read already.
type Begun struct {
	net.Conn
	First io.Reader
}

func (b *Begun) Read(p []byte) (int, error) { return b.First.Read(p) }

func (b *Begun) NetConn() net.Conn { return b.Conn }

// CloseWrite is for callers that find it by a type assertion.
func (b *Begun) CloseWrite() error {
	if c, ok := b.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}
