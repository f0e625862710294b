package paths

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"rivulet/test/harness/await"
)

// The world of these tests is in memory: hosts with a bind each, some behind a NAT
// of their own. WireGuard is played by the tests: its packets begin with 4, 0, 0, 0.

// internet delivers packets between public addresses.
type internet struct {
	t     testing.TB
	mu    sync.Mutex
	hosts map[netip.Addr]*host // by public or private address
	nats  map[netip.Addr]*natBox
	delay map[[2]string]time.Duration // one way, between hosts by name
	cut   map[[2]string]bool
	spied map[string][][]byte // what a host has sent, by name
}

func newInternet(t testing.TB) *internet {
	return &internet{t: t, hosts: map[netip.Addr]*host{}, nats: map[netip.Addr]*natBox{},
		delay: map[[2]string]time.Duration{}, cut: map[[2]string]bool{}, spied: map[string][][]byte{}}
}

// natBox maps by source, and by destination too if it is symmetric. It lets in only
// what answers.
type natBox struct {
	public    netip.Addr
	symmetric bool
	out       map[[2]netip.AddrPort]netip.AddrPort // inside, outside or zero to mapped
	in        map[netip.AddrPort]netip.AddrPort    // mapped to inside
	sent      map[[2]netip.AddrPort]bool           // mapped, outside
	next      uint16
}

func (n *natBox) leave(from, to netip.AddrPort) netip.AddrPort {
	key := [2]netip.AddrPort{from}
	if n.symmetric {
		key[1] = to
	}
	mapped, ok := n.out[key]
	if !ok {
		n.next += 1 + uint16(mathrand.IntN(50))
		mapped = netip.AddrPortFrom(n.public, n.next)
		n.out[key], n.in[mapped] = mapped, from
	}
	n.sent[[2]netip.AddrPort{mapped, to}] = true
	return mapped
}

func (w *internet) nat(public string, symmetric bool) *natBox {
	n := &natBox{public: netip.MustParseAddr(public), symmetric: symmetric, next: 20000,
		out: map[[2]netip.AddrPort]netip.AddrPort{}, in: map[netip.AddrPort]netip.AddrPort{}, sent: map[[2]netip.AddrPort]bool{}}
	w.nats[n.public] = n
	return n
}

// carry takes a packet from a host to whoever is at the address.
func (w *internet) carry(from *host, to netip.AddrPort, packet []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spied[from.name] = append(w.spied[from.name], packet)
	src := from.addr
	dst := w.hosts[to.Addr()]
	if dst != nil && dst.nat != nil && dst.nat != from.nat {
		dst = nil // a private address of elsewhere
	}
	if from.nat != nil && (dst == nil || dst.nat != from.nat) {
		src = from.nat.leave(src, to)
	}
	if n := w.nats[to.Addr()]; n != nil && n.sent[[2]netip.AddrPort{to, src}] {
		dst = w.hosts[n.in[to].Addr()]
		if dst != nil && dst.addr != n.in[to] {
			dst = nil
		}
	}
	if dst == nil || w.cut[[2]string{from.name, dst.name}] || (dst.nat == nil && dst.addr != to) {
		return
	}
	d := w.delay[[2]string{from.name, dst.name}]
	time.AfterFunc(d, func() {
		select {
		case dst.in <- datagram{packet, src}:
		default:
		}
	})
}

func (w *internet) setCut(a, b string, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[[2]string{a, b}], w.cut[[2]string{b, a}] = cut, cut
}

func (w *internet) setDelay(a, b string, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delay[[2]string{a, b}], w.delay[[2]string{b, a}] = d, d
}

type datagram struct {
	packet []byte
	from   netip.AddrPort
}

// host is one device; it is the inner bind of its paths.
type host struct {
	w       *internet
	name    string
	addr    netip.AddrPort
	nat     *natBox
	in      chan datagram
	closed  chan struct{}
	private Key
	public  Key
	m       *Manager
	bind    *Bind
	deaf    bool    // speaks WireGuard only
	timing  *Timing // nil: testTiming

	mu   sync.Mutex
	used map[Key]conn.Endpoint // as Device.Use says
	got  []string              // WireGuard packets: sender's ID or address, and text
}

func (w *internet) host(name, addr string, nat *natBox) *host {
	k, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	h := &host{w: w, name: name, addr: netip.MustParseAddrPort(addr), nat: nat, in: make(chan datagram, 1024), closed: make(chan struct{}),
		private: Key(k.Bytes()), public: Key(k.PublicKey().Bytes()), used: map[Key]conn.Endpoint{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts[h.addr.Addr()] = h
	return h
}

// start makes the host's paths work, to the peers.
func (h *host) start(carry bool, peers ...*host) {
	level := slog.LevelInfo
	timing := testTiming
	if h.timing != nil {
		timing = *h.timing
	}
	h.m = New(timing, func() {}, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("host", h.name))
	h.m.SetDevice(h)
	h.bind = NewBind(h.m, h)
	fns, _, err := h.bind.Open(h.addr.Port())
	if err != nil {
		h.w.t.Fatal(err)
	}
	for _, fn := range fns {
		go h.receive(fn)
	}
	h.apply(carry, peers...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); h.m.Run(ctx) }()
	h.w.t.Cleanup(func() { cancel(); <-done; h.bind.Close() })
}

// apply tells the host of its peers: those with a public address can be found.
func (h *host) apply(carry bool, peers ...*host) {
	cfg := Config{Private: h.private, Public: h.public, UDP: []netip.AddrPort{h.addr}, Relay: carry}
	for _, p := range peers {
		c := Peer{ID: p.name, Public: p.public}
		if p.nat == nil || p.nat == h.nat {
			c.UDP = []netip.AddrPort{p.addr}
		}
		cfg.Peers = append(cfg.Peers, c)
	}
	if err := h.m.Apply(cfg); err != nil {
		h.w.t.Fatal(err)
	}
}

// receive plays WireGuard.
func (h *host) receive(fn conn.ReceiveFunc) {
	bufs, sizes, eps := make([][]byte, 8), make([]int, 8), make([]conn.Endpoint, 8)
	for i := range bufs {
		bufs[i] = make([]byte, 1<<16-1)
	}
	for {
		n, err := fn(bufs, sizes, eps)
		if err != nil {
			return
		}
		for i := range n {
			if sizes[i] == 0 {
				continue
			}
			who := eps[i].DstToString()
			if e, ok := eps[i].(*Endpoint); ok {
				who = e.peer.id
			}
			h.mu.Lock()
			h.got = append(h.got, who+": "+string(bufs[i][4:sizes[i]]))
			h.mu.Unlock()
		}
	}
}

// say sends a WireGuard packet to the peer and reports whether it arrived.
func (h *host) say(to *host, text string) bool {
	h.mu.Lock()
	ep := h.used[to.public]
	h.mu.Unlock()
	if ep == nil || h.bind.Send([][]byte{append([]byte{4, 0, 0, 0}, text...)}, ep) != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(h.w.t.Context(), 300*time.Millisecond)
	defer cancel()
	return await.Until(ctx, func() error {
		to.mu.Lock()
		defer to.mu.Unlock()
		if !slices.Contains(to.got, h.name+": "+text) {
			return errors.New("lost, or late")
		}
		return nil
	}) == nil
}

// path is the one that the host uses to the peer.
func (h *host) path(to *host) PathStatus {
	for _, s := range h.m.Status(to.public) {
		if s.Used {
			return s
		}
	}
	return PathStatus{}
}

func (h *host) awaitPath(to *host, what string, ok func(PathStatus) bool) PathStatus {
	h.w.t.Helper()
	await.NoError(h.w.t, h.w.t.Context(), 20*time.Second, h.name+" to "+to.name+": "+what, func() error {
		if !ok(h.path(to)) {
			return fmt.Errorf("paths %+v", h.m.Status(to.public))
		}
		return nil
	})
	return h.path(to)
}

// awaitTalk waits until packets pass both ways.
func awaitTalk(a, b *host) time.Duration {
	a.w.t.Helper()
	return await.NoError(a.w.t, a.w.t.Context(), 20*time.Second, a.name+" and "+b.name+" hear each other", func() error {
		text := strconv.FormatInt(time.Now().UnixNano(), 10)
		if !a.say(b, text) || !b.say(a, text) {
			return fmt.Errorf("paths %+v and %+v", a.m.Status(b.public), b.m.Status(a.public))
		}
		return nil
	})
}

// move gives the host another address.
func (h *host) move(addr string) {
	h.w.mu.Lock()
	delete(h.w.hosts, h.addr.Addr())
	h.addr = netip.MustParseAddrPort(addr)
	h.w.hosts[h.addr.Addr()] = h
	h.w.mu.Unlock()
}

// The host as inner bind.

func (h *host) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	return []conn.ReceiveFunc{func(bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		select {
		case <-h.closed:
			return 0, net.ErrClosed
		case d := <-h.in:
			if h.deaf && d.packet[0] == magic {
				return 0, nil
			}
			sizes[0], eps[0] = copy(bufs[0], d.packet), &conn.StdNetEndpoint{AddrPort: d.from}
			return 1, nil
		}
	}}, 7442, nil
}
func (h *host) Close() error         { close(h.closed); return nil }
func (h *host) SetMark(uint32) error { return nil }
func (h *host) BatchSize() int       { return 8 }
func (h *host) ParseEndpoint(s string) (conn.Endpoint, error) {
	a, err := netip.ParseAddrPort(s)
	return &conn.StdNetEndpoint{AddrPort: a}, err
}
func (h *host) Send(bufs [][]byte, ep conn.Endpoint) error {
	for _, b := range bufs {
		h.w.carry(h, ep.(*conn.StdNetEndpoint).AddrPort, append([]byte(nil), b...))
	}
	return nil
}

// The host as WireGuard device.

func (h *host) Use(k Key, ep conn.Endpoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used[k] = ep
}
func (h *host) Wake(Key) {}

var testTiming = func() Timing {
	t := DefaultTiming
	t.Active, t.Standby, t.Fast = 300*time.Millisecond, 500*time.Millisecond, 100*time.Millisecond
	t.First, t.Search, t.Idle = 50*time.Millisecond, 500*time.Millisecond, 2*time.Second
	t.Help, t.Dial, t.Advertise, t.Dwell, t.Forget = 200*time.Millisecond, 300*time.Millisecond, 500*time.Millisecond, time.Second, 3*time.Second
	return t
}()
