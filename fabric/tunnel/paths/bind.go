package paths

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.zx2c4.com/wireguard/conn"

	"rivulet/fabric/changes"
)

// Endpoint is a peer, at any address. WireGuard uses it as the destination of the peer's packets.
type Endpoint struct{ peer *peer }

var _ conn.Endpoint = (*Endpoint)(nil)

// Peer is the peer's key.
func (e *Endpoint) Peer() Key { return e.peer.public }

func (*Endpoint) ClearSrc() {}

func (*Endpoint) SrcToString() string { return "" }

// DstToString is the address in use, or empty if there is none.
func (e *Endpoint) DstToString() string {
	if w := e.peer.best.Load(); w != nil && w.kind != Relay {
		return w.addr.String()
	}
	return ""
}

// DstToBytes never changes: WireGuard's cookies are bound to it.
func (e *Endpoint) DstToBytes() []byte { return e.peer.short[:] }

// DstIP is unique per peer: WireGuard counts handshakes by it.
func (e *Endpoint) DstIP() netip.Addr {
	ip := [16]byte{0xfd, 'r', 'i', 'v'}
	copy(ip[8:], e.peer.short[:])
	return netip.AddrFrom16(ip)
}

func (*Endpoint) SrcIP() netip.Addr { return netip.Addr{} }

// Bind is WireGuard's bind: inner for UDP, and the manager's paths.
type Bind struct {
	conn.Bind // UDP
	m         *Manager

	mu     sync.Mutex
	closed chan struct{} // nil while closed
}

func NewBind(m *Manager, inner conn.Bind) *Bind { return &Bind{Bind: inner, m: m} }

func (b *Bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	fns, actual, err := b.Bind.Open(port)
	if err != nil {
		return fns, actual, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = make(chan struct{})
	out := []conn.ReceiveFunc{b.streams(b.closed)}
	for _, fn := range fns {
		out = append(out, b.udp(fn))
	}
	b.m.inner.Store(&b.Bind)
	changes.Poke(b.m.kick)
	return out, actual, nil
}

func (b *Bind) Close() error {
	b.mu.Lock()
	if b.closed != nil {
		close(b.closed)
		b.closed = nil
	}
	b.mu.Unlock()
	return b.Bind.Close()
}

// udp removes packets of this package and sets the peer of all others.
func (b *Bind) udp(fn conn.ReceiveFunc) conn.ReceiveFunc {
	return func(bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		n, err := fn(bufs, sizes, eps)
		if err != nil {
			return n, err
		}
		proved := *b.m.byAddr.Load()
		var at netip.AddrPort // of the previous packet: most of a batch have the same sender
		var of *peer
		for i := range n {
			if sizes[i] == 0 {
				continue
			}
			if bufs[i][0] == magic {
				carried, end := b.m.receive(bufs[i][:sizes[i]], origin{kind: Direct, ep: eps[i]})
				sizes[i] = copy(bufs[i], carried)
				if end != nil {
					eps[i] = end
				}
				continue
			}
			if a := addrOf(eps[i]); a != at {
				at, of = a, proved[a]
			}
			if of != nil && of.broker {
				sizes[i] = 0 // only relay frames come from it
			} else if of != nil {
				eps[i] = of.end
			}
		}
		return n, nil
	}
}

// streams is the receive function of all streams.
func (b *Bind) streams(closed chan struct{}) conn.ReceiveFunc {
	return func(bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		var first received
		select {
		case <-closed:
			return 0, net.ErrClosed
		case first = <-b.m.rx:
		}
		n := 0
		for r := first; ; {
			sizes[n], eps[n] = copy(bufs[n], r.packet), r.end
			r.free()
			if n++; n == len(bufs) {
				return n, nil
			}
			select {
			case r = <-b.m.rx:
			default:
				return n, nil
			}
		}
	}
}

var errNoPath = errors.New("no path to the peer is known")

// The types of WireGuard's first two messages, and their lengths.
const (
	initiation, response         = 1, 2
	initiationSize, responseSize = 148, 92
)

func (b *Bind) Send(bufs [][]byte, to conn.Endpoint) error {
	e, ok := to.(*Endpoint)
	if !ok {
		return b.Bind.Send(bufs, to)
	}
	p := e.peer
	best := p.best.Load()
	if best == nil || best.stream == nil || !best.stream.whole {
		if bufs = b.m.fitting(bufs); len(bufs) == 0 {
			return nil
		}
	}
	if best != nil && best.alive.Load() {
		return best.send(bufs)
	}
	if len(bufs) == 1 && len(bufs[0]) == initiationSize && binary.LittleEndian.Uint32(bufs[0]) == initiation {
		kept := append([]byte(nil), bufs[0]...)
		p.last.Store(&kept)
		return p.broadcast(bufs[0])
	}
	// The handshake came, for example, by a stream that has not answered a ping yet.
	if len(bufs) == 1 && len(bufs[0]) == responseSize && binary.LittleEndian.Uint32(bufs[0]) == response {
		return p.broadcast(bufs[0])
	}
	if best == nil {
		return errNoPath
	}
	return best.send(bufs)
}

// fitting removes packets that were read for a path that takes any size: they are sent again, by this one.
func (m *Manager) fitting(bufs [][]byte) [][]byte {
	most := int(m.most.Load())
	if most == 0 || !slices.ContainsFunc(bufs, func(b []byte) bool { return len(b) > most }) {
		return bufs
	}
	fit := make([][]byte, 0, len(bufs))
	for _, b := range bufs {
		if len(b) <= most {
			fit = append(fit, b)
		}
	}
	return fit
}

// maxBroadcast bounds the copies of a handshake while no path is proved.
const maxBroadcast = 8

func (p *peer) broadcast(packet []byte) error {
	err := errNoPath
	n := 0
	for _, w := range *p.all.Load() {
		if n == maxBroadcast {
			break
		}
		// One failure is no failure of all: others may arrive.
		if e := w.send([][]byte{append([]byte(nil), packet...)}); e == nil {
			n, err = n+1, nil
			if w.kind == Stream {
				p.last.Store(nil) // it arrives: WireGuard must not receive it twice
			}
		}
	}
	return err
}

// write sends by UDP.
func (m *Manager) write(bufs [][]byte, ep conn.Endpoint) error {
	inner := m.inner.Load()
	if inner == nil {
		return net.ErrClosed
	}
	return (*inner).Send(bufs, ep)
}

// send sends packets by this path.
func (w *path) send(bufs [][]byte) error {
	switch w.kind {
	case Direct:
		return w.peer.m.write(bufs, *w.ep.Load())
	case Stream:
		return w.stream.send(bufs)
	}
	hop := w.via.hop.Load()
	if hop == nil {
		return errNoPath
	}
	w.peer.m.mu.Lock()
	from, secret := w.peer.m.self.tag(), w.via.secret
	w.peer.m.mu.Unlock()
	to := w.peer.short.tag()
	framed := make([][]byte, len(bufs))
	pooled := make([]*[]byte, len(bufs))
	for i, b := range bufs {
		pooled[i] = takeBuffer(relayHead + len(b))
		framed[i] = *pooled[i]
		copy(framed[i][relayHead:], b)
		secret.frame(framed[i][:relayHead], from, to, b)
	}
	err := hop.send(framed)
	for _, b := range pooled {
		giveBuffer(b)
	}
	return err
}
