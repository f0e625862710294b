package control

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"rivulet/fabric/connlimit"
)

// A peer reaches one TCP port of ours, the control port at the tunnel's address.
// What its pods need of this cluster beside pods (the API server) comes through it
// too, told apart by the server name of TLS: a connection to a passed name is
// handed over as it is, nothing of it answered; all others are the control port's.
//
//	pod of ours at a peer ── kubernetes.default.svc ──▶ 7442 ──▶ handler ──▶ API server
//	peer's supervisor     ── <our ID>               ──▶ 7442 ──▶ routes
//	laptop, kubectl       ── kubernetes.rivulet     ──▶ 7442 on the LAN ──▶ handler ──▶ API server
//	browser, curl         ── any name, or none      ──▶ 7442 on the LAN ──▶ handler of Browsers
//
// Peers speak TLS 1.3 alone and name an ID or nothing, browsers and the like offer 1.2, too.
//
// On the LAN a connection is a stranger's, with the time and room of one, until its
// handler says whose it is (connlimit.Lasting).
type serverNames struct {
	mu            sync.RWMutex
	inside, onLAN map[string]func(net.Conn)
}

// Browsers is the name for PassLAN of clients that are neither a peer nor ask for another passed name.
const Browsers = "-"

// helloTimeout bounds the wait for the first message of TLS, as the server's own does.
const helloTimeout = 5 * time.Second

// Pass hands connections inside the tunnel whose clients ask for one of the server
// names to h, which owns them; a nil h ends it. Names given before are replaced.
// Nothing is known of the client but its address: h has to authenticate it.
func (p *Port) Pass(h func(net.Conn), names ...string) { p.names.set(&p.names.inside, h, names) }

// PassLAN is Pass for connections from outside the tunnel. H runs on a goroutine of the
// connection.
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

// router is the control port's listener without the connections that are passed.
// Each is read on its own: a silent one holds up no other.
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
				// Pods at a peer take nothing of what is the peer's own.
				if !inside || connlimit.Known(c, r.port.podsOf(c)) {
					h(whole)
				}
			} else {
				r.hand(whole)
			}
		}()
	}
}

// podsOf names those for whom a connection that is passed counts.
func (p *Port) podsOf(c net.Conn) string {
	from, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return "pods"
	}
	return "pods of " + p.cfg.Peers.Owner(from.AddrPort().Addr().Unmap())
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
		r.failed <- err // for whoever asks again
		return nil, err
	}
}

func (r *router) Close() error {
	r.once.Do(func() { close(r.closed) })
	return r.Listener.Close()
}

var errSeen = errors.New("fabric: seen")

// serverName reads the first message of TLS and returns the name asked for, whether its client is no
// peer, and the connection as if nothing had been read. What is no TLS has no name.
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

// tasted is a connection that is only read.
type tasted struct{ io.Reader }

func (tasted) Write(p []byte) (int, error)      { return len(p), nil }
func (tasted) Close() error                     { return nil }
func (tasted) LocalAddr() net.Addr              { return nil }
func (tasted) RemoteAddr() net.Addr             { return nil }
func (tasted) SetDeadline(time.Time) error      { return nil }
func (tasted) SetReadDeadline(time.Time) error  { return nil }
func (tasted) SetWriteDeadline(time.Time) error { return nil }

// Begun is a connection of which First holds the beginning.
type Begun struct {
	net.Conn
	First io.Reader
}

func (b *Begun) Read(p []byte) (int, error) { return b.First.Read(p) }

// NetConn returns the connection below.
func (b *Begun) NetConn() net.Conn { return b.Conn }

// CloseWrite is there for what looks for it.
func (b *Begun) CloseWrite() error {
	if c, ok := b.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}
