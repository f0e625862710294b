// Package paths finds the paths to each peer of the tunnel, measures them and sends WireGuard's packets by the best:
// UDP to one of its addresses, through a common peer (the relay, which sees ciphertext only), or in a TLS stream where
// UDP is blocked. docs/design/paths.md has the details.
//
//	WireGuard ── Bind ── peer ─┬─ direct 192.168.1.5:7442   alive, 0.4 ms   ◀ used
//	                           ├─ relay via c               alive, 2.1 ms
//	                           └─ direct 203.0.113.9:7442   no answer
//
// It reads the Config and peers' messages, sealed with a key derived from the WireGuard keys of both ends. It alone
// decides the path of a peer's packets. It stores nothing: after a restart it finds all paths again, direct ones within
// about a second. A peer without this protocol is reached at its configured endpoint and roams as in WireGuard. A peer
// without a path shows in `rivulet peers`.
package paths

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"rivulet/fabric/changes"
)

// Config is the whole desired state.
type Config struct {
	Private Key
	Public  Key
	// UDP and TCP are this device's addresses, advertised to peers.
	UDP, TCP []netip.AddrPort
	// Relay lets peers reach each other through this device.
	Relay bool
	// Hub: this device is a broker. It relays between peers of the same Room, knows their addresses from their pings
	// alone, and sends and dials to no other.
	Hub   bool
	Peers []Peer
}

type Peer struct {
	ID     string
	Public Key
	// UDP and TCP are its possible addresses; WireGuard sends to the first of UDP until one has answered.
	UDP, TCP []netip.AddrPort
	// AnnouncedUDP and AnnouncedTCP may be anybody's words: up to maxAnnounced of each are tried.
	AnnouncedUDP, AnnouncedTCP []netip.AddrPort
	// Never reports whether an address leads into the tunnel itself. It may be nil.
	Never func(netip.Addr) bool
	// Broker: it only relays, and is no peer of WireGuard.
	Broker bool
	// Room is that of a Hub's peer.
	Room string
}

// Device is the WireGuard device. Run calls it, holding no lock.
type Device interface {
	// Use makes the endpoint the destination of the peer's packets.
	Use(Key, conn.Endpoint)
	// Wake makes WireGuard send a packet to the peer now.
	Wake(Key)
}

type PathStatus struct {
	Kind Kind           `json:"kind"`
	Addr netip.AddrPort `json:"addr"`          // of direct and stream
	Via  string         `json:"via,omitempty"` // ID of the relay
	RTT  time.Duration  `json:"rtt,omitempty"` // nanoseconds
	// Alive: it answers. Used: the peer's packets take it.
	Alive bool `json:"alive"`
	Used  bool `json:"used"`
}

// Manager has the paths to all peers. Its methods may be called concurrently.
type Manager struct {
	log    *slog.Logger
	timing Timing
	kick   chan struct{}
	inner  atomic.Pointer[conn.Bind] // nil while WireGuard is down
	dialer func(ctx context.Context, addr netip.AddrPort) (streamConn, error)
	rx     chan received // of streams, for WireGuard

	byAddr  atomic.Pointer[map[netip.AddrPort]*peer] // proved addresses
	byTag   atomic.Pointer[map[tag][]*peer]          // one of a room
	relay   atomic.Bool
	hub     atomic.Bool
	relayed atomic.Uint64 // packets relayed for others
	refused atomic.Uint64 // packets of others that were too much
	whole   atomic.Int64  // streams that take packets of any size
	most    atomic.Int64  // the longest message of WireGuard for all other paths; 0 is unknown
	greets  greets
	sum     bucket // of what a hub relays

	mu      sync.Mutex
	cfg     Config
	self    short
	device  Device
	peers   map[short]*peer
	byKey   map[Key]*peer
	movedAt time.Time
	todo    []func() // for Run to do: calls into WireGuard must not come from its own calls
	changed func()   // after a change of Status (except round trip times); must not block
}

// New returns a manager without peers. Run starts its work. Changed is called when a peer's path has changed, works or
// fails; it must not block.
func New(timing Timing, changed func(), log *slog.Logger) *Manager {
	m := &Manager{
		log: log, timing: timing, kick: make(chan struct{}, 1), rx: make(chan received, 128),
		peers: map[short]*peer{}, byKey: map[Key]*peer{}, changed: changed,
	}
	m.dialer = dialStream
	m.byAddr.Store(&map[netip.AddrPort]*peer{})
	m.byTag.Store(&map[tag][]*peer{})
	return m
}

// SetDevice sets the WireGuard device; nil is none.
func (m *Manager) SetDevice(d Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.device = d
}

// messageOver is by how much a message of WireGuard is longer than its packet.
const messageOver = 32

// SetMTU sets the tunnel's MTU. Longer packets are sent by those paths alone that take any size.
func (m *Manager) SetMTU(mtu int) { m.most.Store(int64(mtu + messageOver)) }

// AnyWhole reports whether there is a path that takes packets of any size.
func (m *Manager) AnyWhole() bool { return m.whole.Load() > 0 }

// Whole reports whether the path to the peer does at the moment.
func (m *Manager) Whole(key Key) bool {
	p := m.tagged(shortOf(key).tag(), "")
	if p == nil {
		return false
	}
	w := p.best.Load()
	return w != nil && w.stream != nil && w.stream.whole && w.alive.Load()
}

// Apply makes cfg the whole state. Unchanged peers are not touched. It returns an error for an invalid key; then
// nothing has changed.
func (m *Manager) Apply(cfg Config) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	secrets := map[Key]*secret{}
	for _, p := range cfg.Peers {
		if old := m.byKey[p.Public]; old != nil && m.cfg.Private == cfg.Private {
			secrets[p.Public] = old.secret
			continue
		}
		s, err := newSecret(cfg.Private, p.Public)
		if err != nil {
			return errors.New("paths: the key of peer " + p.ID + " cannot be one: peer again")
		}
		secrets[p.Public] = s
	}
	old, was := m.cfg, m.byKey
	m.cfg, m.self = cfg, shortOf(cfg.Public)
	m.relay.Store(cfg.Relay)
	m.hub.Store(cfg.Hub)
	var successors []*peer
	peers, byKey, byTag := map[short]*peer{}, map[Key]*peer{}, map[tag][]*peer{}
	for _, c := range cfg.Peers {
		p := m.byKey[c.Public]
		if p == nil || p.broker != c.Broker || p.room != c.Room {
			p = newPeer(m, c.Public, now)
			p.broker, p.room = c.Broker, c.Room
			successors = append(successors, p)
		}
		p.secret = secrets[c.Public]
		if p.id != c.ID { // it is read without the lock, and changes only for a new peer
			p.id = c.ID
		}
		p.configure(c, now)
		peers[p.short], byKey[c.Public] = p, p
		byTag[p.short.tag()] = append(byTag[p.short.tag()], p)
	}
	for _, p := range successors { // with another key it is at the same address
		for _, o := range m.byKey {
			if o.id == p.id {
				p.inherit(o, now)
			}
		}
	}
	for key, p := range m.byKey {
		if byKey[key] != p {
			p.close()
		}
	}
	m.peers, m.byKey = peers, byKey
	for _, p := range peers {
		p.due = time.Time{}
	}
	m.byTag.Store(&byTag)
	m.index()
	if !slices.Equal(old.UDP, cfg.UDP) || !slices.Equal(old.TCP, cfg.TCP) {
		for _, p := range peers {
			p.advertiseAt = now
		}
	}
	for _, p := range peers {
		if was[p.public] == nil || p.anyAlive() {
			p.use() // otherwise WireGuard may have roamed to a better address
		}
	}
	changes.Poke(m.kick)
	return nil
}

// Moved is to be called when the host's addresses have changed: every peer is notified from the new ones.
func (m *Manager) Moved() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.movedAt = now
	for _, p := range m.peers {
		p.advertiseAt, p.due = now, time.Time{}
		for _, w := range p.paths {
			w.seen = netip.AddrPort{}
			w.refresh()
			w.probe.doubt(now)
			w.alive.Store(false)
		}
		p.lost, p.dialAt, p.dials = now, now.Add(m.timing.Dial), 0
	}
	changes.Poke(m.kick)
}

func (m *Manager) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			m.mu.Lock()
			for _, p := range m.peers {
				p.close()
			}
			m.mu.Unlock()
			return
		case <-m.kick:
		case <-timer.C:
		}
		timer.Reset(m.round(ctx))
	}
}

// round does what is due and returns the time until something else is.
func (m *Manager) round(ctx context.Context) time.Duration {
	var send []func()
	m.mu.Lock()
	now := time.Now()
	next := now.Add(time.Minute)
	for _, p := range m.peers {
		if !p.due.After(now) { // a message of one peer is no work for two hundred
			p.due = p.round(ctx, now, &send)
		}
		if p.due.Before(next) {
			next = p.due
		}
	}
	send, m.todo = append(m.todo, send...), nil
	m.mu.Unlock()
	for _, f := range send {
		f()
	}
	return max(time.Until(next), 10*time.Millisecond)
}

// Status returns the paths of the peer with the key, the one in use first.
func (m *Manager) Status(public Key) []PathStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.byKey[public]
	if p == nil {
		return nil
	}
	var out []PathStatus
	best := p.best.Load()
	for _, w := range p.paths {
		s := PathStatus{Kind: w.kind, Addr: w.addr, Alive: w.probe.alive, Used: w == best && w.probe.alive, RTT: w.probe.rtt}
		if w.via != nil {
			s.Via = w.via.id
		}
		out = append(out, s)
	}
	rank := func(s PathStatus) int {
		switch {
		case s.Used:
			return 0
		case s.Alive:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(out, func(a, b PathStatus) int { return rank(a) - rank(b) })
	return out
}

// Seen returns this device's server-reflexive addresses: where peers see it, other than at its own.
func (m *Manager) Seen() []netip.AddrPort {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.serverReflexive()
}

// Relayed returns how many packets were relayed for others since start.
func (m *Manager) Relayed() uint64 { return m.relayed.Load() }

// Refused returns how many packets were not relayed since start, because there were too many.
func (m *Manager) Refused() uint64 { return m.refused.Load() }

// The functions below are called with mu held.

// later lets Run call f. WireGuard holds locks while it waits for its receivers and senders, which call this package:
// these must not wait for the same locks.
func (m *Manager) later(f func()) {
	m.todo = append(m.todo, f)
	changes.Poke(m.kick)
}

func (m *Manager) news() { m.changed() }

// index rebuilds the proved addresses.
func (m *Manager) index() {
	byAddr := map[netip.AddrPort]*peer{}
	when := map[netip.AddrPort]time.Time{}
	for _, p := range m.peers {
		for _, w := range p.paths {
			if w.kind == Direct && !w.proved.IsZero() && !w.proved.Before(when[w.addr]) {
				byAddr[w.addr], when[w.addr] = p, w.proved
			}
		}
	}
	m.byAddr.Store(&byAddr)
}

// usable reports whether packets may be sent to an address at all.
func usable(a netip.AddrPort, never func(netip.Addr) bool) bool {
	ip := a.Addr()
	return ip.IsValid() && a.Port() != 0 && !ip.IsUnspecified() && !ip.IsMulticast() &&
		ip != netip.AddrFrom4([4]byte{255, 255, 255, 255}) && (never == nil || !never(ip))
}

func describe(w *path) string {
	if w == nil {
		return "none"
	}
	var b strings.Builder
	b.WriteString(string(w.kind))
	if w.via != nil {
		b.WriteString(" via " + w.via.id)
	} else {
		b.WriteString(" " + w.addr.String())
	}
	return b.String()
}
