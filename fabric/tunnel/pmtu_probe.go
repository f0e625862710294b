package tunnel

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"rivulet/fabric/changes"
)

// probePort is the UDP port of the tunnel's address, inside the tunnel, at which tunnel processes measure the path
// between them. It is part of the protocol.
const probePort = 7443

// A probe is a packet between two probe ports:
//
//	"rvpmtu" | kind 1 | zero 1 | number 8, any | size 2, of the whole IP packet | zeros up to that size
//
// An answer repeats number and size, and has the header only. Processes that do not support probes ignore them; the
// sender then keeps the tunnel's MTU.
const (
	probeMagic  = "rvpmtu"
	probeAsk    = 1
	probeAnswer = 2
	probeHeader = 18
	ipAndUDP    = 28
)

type probe struct {
	kind   byte
	number uint64
	size   int
}

func (p probe) bytes() []byte {
	n := probeHeader
	if p.kind == probeAsk {
		n = max(n, p.size-ipAndUDP)
	}
	b := make([]byte, n)
	copy(b, probeMagic)
	b[6] = p.kind
	binary.BigEndian.PutUint64(b[8:], p.number)
	binary.BigEndian.PutUint16(b[16:], uint16(p.size))
	return b
}

// parseProbe reads a probe. An ask whose size field differs from its size is invalid.
func parseProbe(b []byte) (probe, bool) {
	if len(b) < probeHeader || !bytes.HasPrefix(b, []byte(probeMagic)) {
		return probe{}, false
	}
	p := probe{kind: b[6], number: binary.BigEndian.Uint64(b[8:]), size: int(binary.BigEndian.Uint16(b[16:]))}
	switch p.kind {
	case probeAsk:
		return p, len(b) == max(probeHeader, p.size-ipAndUDP)
	case probeAnswer:
		return p, len(b) == probeHeader
	}
	return probe{}, false
}

// isAsk reports whether an IPv4 packet is an ask of this device itself.
func isAsk(pkt []byte, own uint32) bool {
	const magicAt = ipAndUDP
	return len(pkt) > magicAt+len(probeMagic) && pkt[9] == unix.IPPROTO_UDP && pkt[0] == 4<<4|5 &&
		binary.BigEndian.Uint32(pkt[12:]) == own && binary.BigEndian.Uint16(pkt[22:]) == probePort &&
		string(pkt[magicAt:magicAt+len(probeMagic)]) == probeMagic && pkt[magicAt+len(probeMagic)] == probeAsk
}

// pathMTUs measures the paths to all peers, and reports the results to use.
type pathMTUs struct {
	log   *slog.Logger
	conn  *net.UDPConn
	large *atomic.Uint64 // see pathMTU
	use   func(id string, mtu int)
	way   func(Peer) string

	mu    sync.Mutex
	paths map[netip.AddrPort]*measured // by the peer's probe address
}

type measured struct {
	peer   Peer
	number atomic.Uint64
	path   *pathMTU
	stop   context.CancelFunc
}

// measurePaths opens the probe port at the tunnel's address.
func measurePaths(address netip.Addr, large *atomic.Uint64, use func(string, int), way func(Peer) string, log *slog.Logger) (*pathMTUs, error) {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, probePort)))
	if err != nil {
		return nil, fmt.Errorf("tunnel: the port to measure paths at: %w: the MTU of the LAN is taken for all peers", err)
	}
	// The kernel neither fragments probes nor limits them to the MTU that they resulted in.
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		})
	}
	m := &pathMTUs{log: log, conn: conn, large: large, use: use, way: way, paths: map[netip.AddrPort]*measured{}}
	go m.answer()
	return m, nil
}

// set makes the peers of cfg those whose paths are measured.
func (m *pathMTUs) set(cfg Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	want := map[netip.AddrPort]Peer{}
	for _, p := range cfg.Peers {
		if p.Address.IsValid() {
			want[netip.AddrPortFrom(p.Address, probePort)] = p
		}
	}
	for at, old := range m.paths {
		if p, ok := want[at]; !ok || p.ID != old.peer.ID || p.PublicKey != old.peer.PublicKey || old.path.most != cfg.MTU {
			old.stop()
			delete(m.paths, at)
		}
	}
	for at, p := range want {
		if old := m.paths[at]; old != nil {
			if old.peer.Endpoint != p.Endpoint {
				changes.Poke(old.path.doubt)
			}
			old.peer = p
			continue
		}
		m.paths[at] = m.measure(at, p, cfg.MTU)
	}
}

func (m *pathMTUs) measure(at netip.AddrPort, p Peer, most int) *measured {
	ctx, stop := context.WithCancel(context.Background())
	one := &measured{peer: p, stop: stop}
	one.path = &pathMTU{
		most: most, answers: make(chan int, 64), doubt: make(chan struct{}, 1), large: m.large.Load,
		way: func() string { return m.way(p) },
		begin: func() {
			var b [8]byte
			_, _ = rand.Read(b[:])
			one.number.Store(binary.BigEndian.Uint64(b[:]))
			for len(one.path.answers) > 0 {
				<-one.path.answers
			}
		},
		probe: func(size int) {
			_, _ = m.conn.WriteToUDPAddrPort(probe{kind: probeAsk, number: one.number.Load(), size: size}.bytes(), at)
		},
		use: func(mtu int) {
			if ctx.Err() == nil {
				m.use(p.ID, mtu)
			}
		},
	}
	go one.path.run(ctx)
	return one
}

// doubt measures all paths again: this host has moved.
func (m *pathMTUs) doubt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.paths {
		changes.Poke(one.path.doubt)
	}
}

// answer reads the probe port until it is closed. Only peers receive answers, which are smaller than their probes.
func (m *pathMTUs) answer() {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := m.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		p, ok := parseProbe(buf[:n])
		m.mu.Lock()
		one := m.paths[netip.AddrPortFrom(from.Addr().Unmap(), from.Port())]
		m.mu.Unlock()
		switch {
		case !ok || one == nil:
		case p.kind == probeAsk:
			p.kind = probeAnswer
			_, _ = m.conn.WriteToUDPAddrPort(p.bytes(), from)
		case p.number == one.number.Load():
			select {
			case one.path.answers <- p.size:
			default:
			}
		}
	}
}

func (m *pathMTUs) close() {
	m.set(Config{})
	m.conn.Close()
}
