package fabric

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
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
type passed struct {
	mu           sync.RWMutex
	names, onLAN map[string]func(net.Conn)
}

// Browsers is the name for PassLAN of clients that are neither a peer nor ask for another passed name.
const Browsers = "-"

// helloTimeout bounds the wait for the first message of TLS, as the server's own does.
const helloTimeout = 5 * time.Second

// Pass hands connections inside the tunnel whose clients ask for one of the server
// names to h, which owns them; a nil h ends it. Names given before are replaced.
// Nothing is known of the client but its address: h has to judge it.
func (f *Fabric) Pass(h func(net.Conn), names ...string) {
	f.passed.set(&f.passed.names, h, names)
}

// PassLAN is Pass for connections from outside the tunnel. H runs on a goroutine of the
// connection.
func (f *Fabric) PassLAN(h func(net.Conn), names ...string) {
	f.passed.set(&f.passed.onLAN, h, names)
}

func (p *passed) set(of *map[string]func(net.Conn), h func(net.Conn), names []string) {
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

func (p *passed) handler(name string, inside, browser bool) func(net.Conn) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	of := p.onLAN
	if inside {
		of = p.names
	}
	h := of[strings.ToLower(strings.TrimSuffix(name, "."))]
	if h == nil && browser {
		h = of[Browsers]
	}
	return h
}

// parted is the control port's listener without the connections that are passed.
// Each is looked at apart: one that says nothing holds up no other.
type parted struct {
	net.Listener
	inside func(local netip.Addr) bool
	owner  func(source netip.Addr) string
	passed *passed
	ready  chan net.Conn
	failed chan error
	closed chan struct{}
	once   sync.Once
}

func part(l net.Listener, inside func(netip.Addr) bool, owner func(netip.Addr) string, p *passed) net.Listener {
	out := &parted{Listener: l, inside: inside, owner: owner, passed: p, ready: make(chan net.Conn), failed: make(chan error, 1), closed: make(chan struct{})}
	go out.accept()
	return out
}

func (p *parted) accept() {
	for {
		c, err := p.Listener.Accept()
		if err != nil {
			p.failed <- err
			return
		}
		local, ok := c.LocalAddr().(*net.TCPAddr)
		inside := ok && p.inside(local.AddrPort().Addr().Unmap())
		go func() {
			name, browser, whole, err := serverName(c)
			if err != nil {
				c.Close()
			} else if h := p.passed.handler(name, inside, browser); h != nil {
				// Pods at a peer take nothing of what is the peer's own.
				if !inside || connlimit.Known(c, podsOf(p.owner, c)) {
					h(whole)
				}
			} else {
				p.hand(whole)
			}
		}()
	}
}

// podsOf names those for whom a connection that is passed counts.
func podsOf(owner func(netip.Addr) string, c net.Conn) string {
	from, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return "pods"
	}
	return "pods of " + owner(from.AddrPort().Addr().Unmap())
}

func (p *parted) hand(c net.Conn) {
	select {
	case p.ready <- c:
	case <-p.closed:
		c.Close()
	}
}

func (p *parted) Accept() (net.Conn, error) {
	select {
	case c := <-p.ready:
		return c, nil
	case err := <-p.failed:
		p.failed <- err // for whoever asks again
		return nil, err
	}
}

func (p *parted) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Listener.Close()
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
	return name, browser, &whole{Conn: c, first: io.MultiReader(&read, c)}, nil
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

// whole is a connection with what was read of it put back.
type whole struct {
	net.Conn
	first io.Reader
}

func (w *whole) Read(p []byte) (int, error) { return w.first.Read(p) }

// NetConn returns the connection below.
func (w *whole) NetConn() net.Conn { return w.Conn }

// CloseWrite is there for what looks for it.
func (w *whole) CloseWrite() error {
	if c, ok := w.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}
