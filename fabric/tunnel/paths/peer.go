package paths

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/replay"

	"rivulet/fabric/changes"
)

const (
	maxPaths = 32
	// maxAnnounced bounds the announced addresses of each kind.
	maxAnnounced = 8
	// maxRelays bounds the peers that are tried as relays at once.
	maxRelays = 6
)

type source int

const (
	configured source = iota // from the supervisor
	announced                // by somebody
	advertised               // by the peer
	learnt                   // it has answered there
	pending                  // a relay or stream that has not answered
)

// path is one path to a peer. Manager.mu guards all but the atomics and the constant fields.
type path struct {
	kind   Kind
	peer   *peer
	addr   netip.AddrPort // of direct and stream
	via    *peer          // of relay
	stream *stream
	source source
	made   time.Time

	probe     probe
	proved    time.Time      // when it last answered
	seen      netip.AddrPort // of direct: this device's address, as the peer sees it
	seenSince time.Time      // when it told that first
	pinged    time.Time      // when the peer last pinged by it
	pending   [8]ping        // a ring

	alive atomic.Bool                   // probe.alive, for the sending side
	ep    atomic.Pointer[conn.Endpoint] // of direct: with the local address that the peer answers to
}

type ping struct {
	id   uint64
	sent time.Time
}

// peer is one peer. Manager.mu guards all but the atomics and the constant fields.
type peer struct {
	m      *Manager
	public Key
	short  short
	end    *Endpoint
	secret *secret
	id     string
	broker bool   // it only relays; constant
	room   string // of a hub's peer; constant

	never         func(netip.Addr) bool
	begin         netip.AddrPort // WireGuard's present address of it
	paths         []*path
	tcp           []netip.AddrPort // to dial streams to
	announcedTCP  []netip.AddrPort // as well
	advertisedTCP []netip.AddrPort
	lost          time.Time // since when there is no direct path; zero while there is one
	advertiseAt   time.Time // when to advertise candidates to it; zero if not due
	advertisedAt  time.Time
	chosen        time.Time // when best was chosen
	direct        time.Time // since when there is a direct path
	dialAt        time.Time
	dials         int
	dialing       bool
	stream        *stream    // dialled by this device
	streamed      netip.Addr // the source of its last stream to this device
	due           time.Time  // when round has something to do; zero: at once

	sent      stamp         // of the last message to it
	epoch     uint64        // in which it has answered; zero: it has not
	window    replay.Filter // counts of pings that were received in this epoch
	requested [16]requested // a ring: what was requested of addresses and paths that are not proved
	list      *list         // its newest candidates, until they are taken
	listed    uint64        // the count of the newest list
	taken     time.Time     // when a list was taken

	best atomic.Pointer[path]   // in use; nil before any was known
	hop  atomic.Pointer[path]   // the best live one that is no relay: for relayed packets in both directions
	all  atomic.Pointer[[]way]  // for a handshake while none is alive
	last atomic.Pointer[[]byte] // the last handshake that reached nobody
	rate bucket
}

// way is a path as the sending side sees it while it is not proved.
type way = *path

func newPeer(m *Manager, public Key, now time.Time) *peer {
	p := &peer{m: m, public: public, short: shortOf(public), lost: now, dialAt: now.Add(m.timing.Dial), advertiseAt: now}
	p.sent.epoch = rand.Uint64() | 1 // never zero
	p.end = &Endpoint{peer: p}
	p.publish()
	return p
}

// seal returns a message to the peer.
func (p *peer) seal(m message) []byte {
	p.sent.count++
	return p.secret.seal(p.m.self, p.sent, m.encode())
}

// configure applies the supervisor's configuration.
func (p *peer) configure(c Peer, now time.Time) {
	p.never, p.tcp, p.announcedTCP = c.Never, c.TCP, c.AnnouncedTCP[:min(len(c.AnnouncedTCP), maxAnnounced)]
	p.offer(c.UDP, configured, now)
	p.offer(c.AnnouncedUDP[:min(len(c.AnnouncedUDP), maxAnnounced)], announced, now)
	if len(c.UDP) > 0 && c.UDP[0] != p.begin {
		p.begin = c.UDP[0]
		if i := slices.IndexFunc(p.paths, func(w *path) bool { return w.addr == p.begin && w.kind == Direct }); i >= 0 {
			w := p.paths[i]
			p.paths = slices.Insert(slices.Delete(p.paths, i, i+1), 0, w)
			p.elsewhere(w, now)
			p.publish()
		}
	}
}

// inherit takes over the addresses of the peer under its previous key, not yet proved.
func (p *peer) inherit(o *peer, now time.Time) {
	for _, w := range o.paths {
		switch {
		case w.kind == Direct && p.at(w.addr) == nil:
			p.add(&path{kind: Direct, addr: w.addr, source: max(w.source, advertised)}, now)
		case w.kind == Relay && p.m.byKey[w.via.public] == w.via:
			p.add(&path{kind: Relay, via: w.via, source: pending}, now)
		}
	}
	p.advertisedTCP = o.advertisedTCP
	if best := o.best.Load(); best != nil && best.kind == Direct {
		if w := p.at(best.addr); w != nil {
			p.best.Store(w)
		}
	}
}

// offer makes addrs the candidates of this source.
func (p *peer) offer(addrs []netip.AddrPort, from source, now time.Time) {
	for _, a := range addrs {
		a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
		if w := p.at(a); w != nil {
			w.source = min(w.source, from)
		} else {
			p.add(&path{kind: Direct, addr: a, source: from}, now)
		}
	}
	for _, w := range slices.Clone(p.paths) {
		if w.kind == Direct && w.source == from && !slices.Contains(addrs, w.addr) {
			if w.probe.alive {
				w.source = learnt // removed when it dies
			} else {
				p.drop(w)
			}
		}
	}
	p.publish()
}

// elsewhere processes a hint that the peer is at w now: working paths get one more ping to prove themselves.
func (p *peer) elsewhere(w *path, now time.Time) {
	best := p.best.Load()
	if best == nil || !best.probe.alive {
		p.best.Store(w)
	}
	for _, o := range p.paths {
		if o != w && o.probe.alive {
			o.probe.misses, o.probe.open, o.probe.next = max(0, p.m.timing.Misses-2), true, now
		}
	}
	p.use() // by a proved path again, if there is one
}

// at returns the direct path to the address.
func (p *peer) at(a netip.AddrPort) *path {
	for _, w := range p.paths {
		if w.kind == Direct && w.addr == a {
			return w
		}
	}
	return nil
}

// through returns the path relayed by via.
func (p *peer) through(via *peer) *path {
	for _, w := range p.paths {
		if w.kind == Relay && w.via == via {
			return w
		}
	}
	return nil
}

// permits reports whether packets to the peer may be sent to the address.
func (p *peer) permits(a netip.AddrPort) bool {
	return usable(a, p.never) && !slices.Contains(p.m.cfg.UDP, a)
}

// add adds a path, unless it is not permitted or there are too many. Of too many that do not work the one makes room that
// has answered longest ago, or never.
func (p *peer) add(w *path, now time.Time) *path {
	if w.kind == Direct && !p.permits(w.addr) {
		return nil
	}
	if len(p.paths) >= maxPaths {
		var dead *path
		for _, o := range p.paths {
			if !o.probe.alive && o.source != configured && o != p.best.Load() && (dead == nil || o.proved.Before(dead.proved)) {
				dead = o
			}
		}
		if dead == nil {
			return nil
		}
		p.drop(dead)
	}
	p.due = time.Time{}
	w.peer, w.made = p, now
	w.probe.next = now
	w.refresh()
	p.paths = append(p.paths, w)
	p.publish()
	return w
}

// refresh forgets the local address that the peer answered to.
func (w *path) refresh() {
	if w.kind == Direct {
		var ep conn.Endpoint = &conn.StdNetEndpoint{AddrPort: w.addr}
		w.ep.Store(&ep)
	}
}

func (p *peer) drop(w *path) {
	p.due = time.Time{}
	p.paths = slices.DeleteFunc(p.paths, func(o *path) bool { return o == w })
	w.alive.Store(false)
	w.probe.alive = false
	if w.stream != nil {
		w.stream.close()
		if p.stream == w.stream {
			p.stream = nil
		}
	}
	p.choose(time.Now())
	p.publish()
	if !w.proved.IsZero() && w.kind == Direct {
		p.m.index()
	}
}

// publish updates the sending side.
func (p *peer) publish() {
	all := slices.Clone(p.paths)
	p.all.Store(&all)
	if p.best.Load() == nil {
		for _, w := range p.paths {
			if w.kind == Direct {
				p.best.Store(w)
				break
			}
		}
	}
}

// use makes WireGuard send by the paths instead of the address to which it has roamed.
func (p *peer) use() {
	if d := p.m.device; d != nil && !p.broker {
		p.m.later(func() { d.Use(p.public, p.end) })
	}
}

func (p *peer) choose(now time.Time) {
	was := p.best.Load()
	options, hops, current := make([]option, len(p.paths)), make([]option, len(p.paths)), -1
	direct := false
	for i, w := range p.paths {
		options[i] = option{kind: w.kind, broker: w.via != nil && w.via.broker, alive: w.probe.alive, rtt: w.probe.rtt}
		hops[i] = options[i]
		hops[i].alive = w.probe.alive && w.kind != Relay
		direct = direct || w.probe.alive && w.kind == Direct
		if w == was {
			current = i
		}
	}
	if i := choose(options, current, now.Sub(p.chosen) >= p.m.timing.Dwell); i >= 0 && p.paths[i] != was {
		p.best.Store(p.paths[i])
		p.chosen = now
		p.m.log.Info("path", "peer", p.id, "path", describe(p.paths[i]), "rtt", p.paths[i].probe.rtt, "before", describe(was))
		p.m.news()
	} else if i < 0 {
		p.best.Store(nil)
		p.publish()
	}
	if i := choose(hops, -1, true); i >= 0 {
		p.hop.Store(p.paths[i])
	} else {
		p.hop.Store(nil)
	}
	switch {
	case direct && !p.lost.IsZero():
		p.lost, p.direct = time.Time{}, now
	case !direct && p.lost.IsZero():
		p.lost, p.direct = now.Add(-p.m.timing.Help), time.Time{} // a lost near peer needs help at once
		p.advertiseAt = now
		p.dialAt, p.due = now.Add(p.m.timing.Dial), time.Time{}
		for _, w := range p.paths { // those that were not pinged beside the direct path
			if !w.probe.alive {
				w.probe.again(now)
			}
		}
		changes.Poke(p.m.kick)
	}
}

// round does what is due for this peer and returns the time of the next action.
func (p *peer) round(ctx context.Context, now time.Time, send *[]func()) time.Time {
	t := p.m.timing
	next := now.Add(time.Minute)
	soon := func(at time.Time) {
		if at.Before(next) {
			next = at
		}
	}
	p.tidy(now)
	soon(p.takeList(now))
	direct := p.lost.IsZero()
	if !direct {
		if at := p.lost.Add(t.Help); at.After(now) {
			soon(at)
		} else {
			p.seekHelp(now)
			soon(now.Add(t.Search))
		}
		soon(p.dial(ctx, now)) // a hub has no addresses
	}
	for _, w := range slices.Clone(p.paths) {
		if !w.probe.next.After(now) {
			p.ping(w, now, send)
		}
		soon(w.probe.next)
	}
	if !p.advertiseAt.IsZero() {
		if !p.advertiseAt.After(now) && p.anyAlive() {
			p.advertise(now, send)
		}
		if p.anyAlive() {
			soon(p.advertiseAt)
		}
	}
	return next
}

func (p *peer) anyAlive() bool {
	return slices.ContainsFunc(p.paths, func(w *path) bool { return w.probe.alive })
}

func (p *peer) ping(w *path, now time.Time, send *[]func()) {
	wasAlive := w.probe.alive
	w.probe.sent(now, p.m.timing, p.lost.IsZero())
	if wasAlive && !w.probe.alive {
		w.alive.Store(false)
		p.m.log.Info("path does not answer", "peer", p.id, "path", describe(w))
		if w.stream != nil {
			p.drop(w)
			return
		}
		p.choose(now)
		p.m.news()
	}
	id := rand.Uint64()
	copy(w.pending[1:], w.pending[:])
	w.pending[0] = ping{id: id, sent: now}
	msg := message{kind: bodyPing, id: id}
	if now.Sub(p.m.movedAt) < 3*time.Second {
		msg.flags |= flagMoved
	}
	packet := p.seal(msg)
	*send = append(*send, func() { _ = w.send([][]byte{packet}) })
}

// advertise sends this device's candidates by every live path, and pings the peer's possible addresses at the same
// time: a NAT admits only answers.
func (p *peer) advertise(now time.Time, send *[]func()) {
	p.advertiseAt, p.advertisedAt = time.Time{}, now
	if p.broker || p.m.cfg.Hub {
		return // it sees where packets come from, and that is all it needs
	}
	if !p.lost.IsZero() {
		p.advertiseAt = now.Add(p.m.timing.Advertise)
		for _, w := range p.paths {
			if w.kind == Direct && !w.probe.alive {
				w.probe.again(now)
			}
		}
	}
	msg := message{kind: bodyCandidates, udp: append(p.m.serverReflexive(), p.m.cfg.UDP...), tcp: p.m.cfg.TCP}
	packet := p.seal(msg)
	w := p.best.Load()
	if w == nil || !w.probe.alive {
		return
	}
	*send = append(*send, func() { _ = w.send([][]byte{packet}) })
}

// seekHelp tries common peers as relays, some at a time, and the brokers.
func (p *peer) seekHelp(now time.Time) {
	if p.broker || p.m.cfg.Hub {
		return
	}
	var have int
	for _, w := range p.paths {
		if w.kind == Relay {
			have++
		}
	}
	for _, via := range p.m.peers { // a map: another order each time
		if via == p || via.hop.Load() == nil || p.through(via) != nil || have >= maxRelays && !via.broker {
			continue
		}
		if p.add(&path{kind: Relay, via: via, source: pending}, now) != nil {
			have++
		}
	}
}

// tidy removes unneeded paths.
func (p *peer) tidy(now time.Time) {
	t := p.m.timing
	settled := p.lost.IsZero() && now.Sub(p.direct) > t.Forget
	for _, w := range slices.Clone(p.paths) {
		quiet := !w.probe.alive && now.Sub(w.made) > t.Advertise && now.Sub(w.proved) > t.Advertise
		gone := w.kind == Relay && p.m.peers[w.via.short] != w.via
		switch {
		case gone,
			w.kind == Stream && quiet && w.probe.tries >= t.Misses, // not for a doubt alone
			w.kind == Relay && (settled || quiet && w.proved.IsZero() && w.probe.tries > 4),
			w.stream != nil && settled && w.stream.dialled,
			w.source >= learnt && w.kind != Stream && !w.probe.alive && now.Sub(w.made) > t.Forget && now.Sub(w.proved) > t.Forget:
			p.drop(w)
		}
	}
}

func (p *peer) close() {
	for _, w := range slices.Clone(p.paths) {
		w.alive.Store(false)
		if w.stream != nil {
			w.stream.close()
		}
	}
}
