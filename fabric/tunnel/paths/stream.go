package paths

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/changes"
)

// StreamProtocol is the ALPN name of streams, which distinguishes them on a shared port.
const StreamProtocol = "rivulet-tunnel/1"

// bareProtocol is that of a stream inside another encrypted connection, which Begin offers: TLS ends after the proof, and
// packets of any size pass in one piece (package gso). WireGuard encrypts and authenticates them all the same.
const bareProtocol = "rivulet-tunnel/2"

// bareBegins is the client's first byte without TLS. The server sends nothing before it: the client's TLS would read it.
const bareBegins = 0x02

const (
	streamDial  = 3 * time.Second  // for one address
	streamGreet = 10 * time.Second // for TLS and the proof
)

// streamConn is the part of a TLS connection that a stream uses.
type streamConn interface {
	net.Conn
	ConnectionState() tls.ConnectionState
}

// stream carries datagrams, each behind its length in two bytes, in a TLS 1.3 connection. Both ends prove their
// identity inside of it, by the secret of their WireGuard keys over the connection's own exporter: a proxy that
// terminates TLS on the way cannot forward the proof. The certificate has no meaning.
//
//	client ── its short 8, HMAC("client", exporter) 32 ──▶ server
//	client ◀────────────── HMAC("server", exporter) 32 ─── server
type stream struct {
	conn    net.Conn
	path    *path
	dialled bool
	begun   bool // by Begin: the other end begins WireGuard's handshake, so that not both do
	whole   bool // the other end takes packets of any size
	out     outbox
	done    chan struct{}
	once    sync.Once
}

func dialStream(ctx context.Context, addr netip.AddrPort) (streamConn, error) {
	ctx, cancel := context.WithTimeout(ctx, streamDial+streamGreet)
	defer cancel()
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: streamDial}, Config: &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{StreamProtocol},
		InsecureSkipVerify: true, // see stream
	}}
	c, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	return c.(*tls.Conn), nil
}

var serverTLS = sync.OnceValues(func() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	// The dates are constant: a board's clock may be wrong, and no end checks them.
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{bareProtocol, StreamProtocol},
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}, nil
})

func (s *secret) prove(side string, exporter []byte) []byte {
	h := hmac.New(sha256.New, s.proof)
	h.Write([]byte(side))
	h.Write(exporter)
	return h.Sum(nil)
}

func exporter(c streamConn) ([]byte, error) {
	state := c.ConnectionState()
	return state.ExportKeyingMaterial("EXPORTER-rivulet-tunnel", nil, 32)
}

var errProof = errors.New("paths: the other end of the stream is not the peer")

// greet is the client's half of the proof.
func (s *secret) greet(c streamConn, self short) error {
	e, err := exporter(c)
	if err != nil {
		return err
	}
	if _, err := c.Write(append(self[:], s.prove("client", e)...)); err != nil {
		return err
	}
	answer := make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, answer); err != nil {
		return err
	}
	if !hmac.Equal(answer, s.prove("server", e)) {
		return errProof
	}
	return nil
}

// Accept takes a connection that requested StreamProtocol. Begun are the bytes already read. It returns at once. A
// connection without a proof in time is closed; so is the oldest unproved one of the busiest source when there are too
// many.
func (m *Manager) Accept(ctx context.Context, c net.Conn, begun []byte) {
	from := sourceOf(remote(c).Addr())
	g := m.greets.enter(c, from, m.at(from))
	go func() {
		defer m.greets.leave(g)
		config, err := serverTLS()
		if err == nil {
			err = m.welcome(ctx, &resumed{Conn: c, begun: begun}, config)
		}
		if err != nil {
			m.log.Debug("stream refused", "from", c.RemoteAddr(), "err", err)
			c.Close()
		}
	}()
}

// at returns a peer that has proved to be at the source; nil if there is none.
func (m *Manager) at(source netip.Addr) *peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.peers {
		if p.streamed == source {
			return p
		}
		for _, w := range p.paths {
			if w.kind == Direct && !w.proved.IsZero() && sourceOf(w.addr.Addr()) == source {
				return p
			}
		}
	}
	return nil
}

// greets has the unproved streams, oldest first. A new one always gets in: it ends the oldest of its own source, or of
// the source that has most. A peer that has been at the source before has places of its own, which nobody else ends.
type greets struct {
	mu  sync.Mutex
	all []*greeting
}

type greeting struct {
	conn net.Conn
	from netip.Addr
	peer *peer // whose place it has; nil for a stranger's
}

const (
	maxGreets       = 64 // of strangers
	greetsPerSource = 4
	greetsPerPeer   = 2
)

// enter counts an unproved stream. The peer is one that has been at the source, or nil.
func (g *greets) enter(c net.Conn, from netip.Addr, p *peer) *greeting {
	g.mu.Lock()
	defer g.mu.Unlock()
	own, strangers, by := 0, 0, map[netip.Addr]int{}
	for _, o := range g.all {
		if o.peer == nil {
			strangers++
			by[o.from]++
		} else if o.peer == p {
			own++
		}
	}
	if p != nil && own >= greetsPerPeer {
		p = nil // somebody else behind the same address may have them
	}
	if p == nil && (strangers >= maxGreets || by[from] >= greetsPerSource) {
		busiest := from
		for _, o := range g.all {
			if o.peer == nil && by[from] < greetsPerSource && by[o.from] > by[busiest] {
				busiest = o.from
			}
		}
		i := slices.IndexFunc(g.all, func(o *greeting) bool { return o.peer == nil && o.from == busiest })
		g.all[i].conn.Close()
		g.all = slices.Delete(g.all, i, i+1)
	}
	out := &greeting{c, from, p}
	g.all = append(g.all, out)
	return out
}

func (g *greets) leave(o *greeting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = slices.DeleteFunc(g.all, func(other *greeting) bool { return other == o })
}

// sourceOf is what counts as one source: an IPv4 address, or an IPv6 network.
func sourceOf(a netip.Addr) netip.Addr {
	if p, err := a.WithZone("").Prefix(64); err == nil && a.Is6() && !a.IsLinkLocalUnicast() {
		return p.Addr()
	}
	return a
}

func (m *Manager) welcome(ctx context.Context, raw net.Conn, config *tls.Config) error {
	raw.SetDeadline(time.Now().Add(streamGreet)) //nolint:errcheck // it fails on use
	c := tls.Server(raw, config)
	if err := c.HandshakeContext(ctx); err != nil {
		return err
	}
	e, err := exporter(c)
	if err != nil {
		return err
	}
	hello := make([]byte, len(short{})+sha256.Size)
	if _, err := io.ReadFull(c, hello); err != nil {
		return err
	}
	m.mu.Lock()
	p := m.peers[short(hello[:8])]
	var secret *secret
	if p != nil {
		secret = p.secret
	}
	m.mu.Unlock()
	if p == nil || !hmac.Equal(hello[8:], secret.prove("client", e)) {
		return errProof
	}
	if _, err := c.Write(secret.prove("server", e)); err != nil {
		return err
	}
	st := &stream{conn: c}
	if c.ConnectionState().NegotiatedProtocol == bareProtocol {
		st.conn, st.whole = raw, true
		begins := make([]byte, 1)
		if _, err := io.ReadFull(raw, begins); err != nil {
			return err
		}
		if begins[0] != bareBegins {
			return errProof
		}
	}
	raw.SetDeadline(time.Time{}) //nolint:errcheck // it fails on use
	m.join(p, st, remote(raw))
	return nil
}

// remote is the address of the other end; a process of this device is on its loopback.
func remote(c net.Conn) netip.AddrPort {
	if _, ok := c.RemoteAddr().(*net.UnixAddr); ok {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	}
	a, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// resumed is a connection with some bytes already read.
type resumed struct {
	net.Conn
	begun []byte
}

func (r *resumed) Read(b []byte) (int, error) {
	if len(r.begun) > 0 {
		n := copy(b, r.begun)
		r.begun = r.begun[n:]
		return n, nil
	}
	return r.Conn.Read(b)
}

// streamAddrs are the addresses to dial, one after the other: those that anybody may have announced come last.
func (p *peer) streamAddrs() []netip.AddrPort {
	addrs := slices.Clone(p.tcp)
	for _, a := range p.advertisedTCP {
		if !slices.Contains(addrs, a) && p.mayDial(a) {
			addrs = append(addrs, a)
		}
	}
	for _, a := range p.announcedTCP {
		if !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// dial opens a stream if it is due; it returns when to call again.
func (p *peer) dial(ctx context.Context, now time.Time) time.Time {
	far := now.Add(time.Minute)
	addrs := p.streamAddrs()
	if p.dialing || len(addrs) == 0 || slices.ContainsFunc(p.paths, func(w *path) bool { return w.kind == Stream }) {
		return far
	}
	if p.dialAt.After(now) {
		return p.dialAt
	}
	p.dialing = true
	self, secret := p.m.self, p.secret
	go func() {
		c, at, err := p.connect(ctx, addrs, self, secret)
		p.m.mu.Lock()
		now := time.Now()
		p.dialing = false
		p.dialAt = now.Add(min(time.Second<<min(p.dials, 10), 30*time.Second))
		p.dials++
		p.due = time.Time{}
		gone := p.m.byKey[p.public] != p
		p.m.mu.Unlock()
		switch {
		case err != nil:
			p.m.log.Debug("no stream", "peer", p.id, "err", err)
		case gone:
			c.Close()
		default:
			p.m.join(p, &stream{conn: c, dialled: true}, at)
		}
		changes.Poke(p.m.kick)
	}()
	return far
}

// connect dials one address after the other.
func (p *peer) connect(ctx context.Context, addrs []netip.AddrPort, self short, secret *secret) (streamConn, netip.AddrPort, error) {
	var failed []error
	for _, a := range addrs {
		c, err := p.m.dialer(ctx, a)
		if err == nil {
			c.SetDeadline(time.Now().Add(streamGreet)) //nolint:errcheck // it fails on use
			if err = secret.greet(c, self); err == nil {
				c.SetDeadline(time.Time{}) //nolint:errcheck // it fails on use
				return c, a, nil
			}
			c.Close()
		}
		failed = append(failed, fmt.Errorf("%s: %w", a, err))
	}
	return nil, netip.AddrPort{}, errors.Join(failed...)
}

// maxStreams bounds the open streams of a peer to this device.
const maxStreams = 2

// join makes a proved connection a path.
func (m *Manager) join(p *peer, s *stream, at netip.AddrPort) {
	s.out.ready, s.done = make(chan struct{}, 1), make(chan struct{})
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.byKey[p.public] != p {
		s.close()
		return
	}
	var there []*path
	for _, w := range p.paths {
		if w.kind == Stream {
			there = append(there, w)
		}
	}
	if len(there) >= maxStreams {
		p.drop(there[0])
	}
	w := &path{kind: Stream, addr: at, stream: s, source: pending}
	s.path = w
	if p.add(w, now) == nil {
		s.close()
		return
	}
	if s.dialled {
		p.stream, p.dials = s, 0
	} else {
		p.streamed = sourceOf(at.Addr())
	}
	p.due = time.Time{}
	m.log.Info("stream", "peer", p.id, "addr", at, "dialled", s.dialled, "whole", s.whole)
	go s.write()
	if s.whole {
		m.whole.Add(1)
	}
	go func() {
		s.read(m)
		if s.whole {
			m.whole.Add(-1)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if slices.Contains(p.paths, w) {
			m.log.Info("stream ended", "peer", p.id, "addr", at)
			p.drop(w)
			m.news()
		}
		p.due = time.Time{}
		changes.Poke(m.kick)
	}()
	changes.Poke(m.kick)
}

func (s *stream) close() {
	s.once.Do(func() {
		close(s.done)
		go s.conn.Close() // the goodbye of TLS may take a while
	})
}
