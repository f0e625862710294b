package paths

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"rivulet/fabric/changes"
)

// origin is the path by which a packet came.
type origin struct {
	kind Kind
	ep   conn.Endpoint // direct
	w    *path         // stream
	via  *peer         // relay
}

func (o origin) addr() netip.AddrPort {
	if o.kind == Direct {
		return addrOf(o.ep)
	}
	return netip.AddrPort{}
}

func addrOf(ep conn.Endpoint) netip.AddrPort {
	if e, ok := ep.(*conn.StdNetEndpoint); ok {
		return netip.AddrPortFrom(e.AddrPort.Addr().Unmap(), e.AddrPort.Port())
	}
	return netip.AddrPort{}
}

// receive processes a packet that begins with the magic byte. If it is a relayed packet of WireGuard, it returns that
// packet and the peer's endpoint.
func (m *Manager) receive(packet []byte, from origin) ([]byte, *Endpoint) {
	if len(packet) < 2 {
		return nil, nil
	}
	switch packet[1] {
	case kindControl:
		m.control(packet, from)
	case kindRelay:
		if from.kind != Relay { // a packet is relayed only once
			return m.frame(packet, from)
		}
	}
	return nil, nil
}

// control processes a sealed message.
func (m *Manager) control(packet []byte, from origin) {
	who, ok := sender(packet)
	if !ok {
		return
	}
	m.mu.Lock()
	p := m.peers[who]
	if p == nil || from.w != nil && from.w.peer != p { // a stream is of one peer
		m.mu.Unlock()
		return
	}
	secret := p.secret
	m.mu.Unlock()
	at, body, err := secret.open(packet)
	if err != nil {
		return
	}
	msg, err := decode(body)
	if err != nil {
		return
	}
	now := time.Now()
	var send []func()
	m.mu.Lock()
	if m.peers[who] == p && p.secret == secret {
		p.handle(msg, at, from, now, &send)
	}
	m.mu.Unlock()
	for _, f := range send {
		f()
	}
}

// handle processes a message of the peer. Anybody may send it again, from anywhere: a ping is always answered, but tells
// something once and in the proved epoch alone, a pong counts by its number, and of lists the newest.
func (p *peer) handle(msg message, at stamp, from origin, now time.Time, send *[]func()) {
	present := at.epoch == p.epoch && p.epoch != 0
	switch {
	case msg.kind == bodyPing:
		p.pinged(msg, present, present && p.window.ValidateCounter(at.count, math.MaxUint64), from, now, send)
	case msg.kind == bodyPong:
		p.ponged(msg, at, from, now, send)
	case msg.kind == bodyCandidates && present:
		p.receiveList(msg, at, from)
	}
}

// way returns the path of a packet, nil if it is unknown. A relay becomes a path by a ping: it is an end of the tunnel's
// own peer. An address becomes one by an answer.
func (p *peer) way(from origin) *path {
	switch from.kind {
	case Stream:
		return from.w
	case Relay:
		return p.through(from.via)
	}
	return p.at(from.addr())
}

// requested is a ping to an address, or by a path, that is not proved.
type requested struct {
	id    uint64
	addr  netip.AddrPort // direct
	w     *path          // relay, stream
	sent  time.Time
	moved bool // the peer has told that it is there, and at its previous addresses no more
}

// request returns the number of a ping that a pong contains. A second one soon after has the same number: who sends many
// pings in the peer's name does not push out what was requested of others.
func (p *peer) request(from origin, w *path, moved bool, now time.Time) uint64 {
	a := requested{id: rand.Uint64() | 1, addr: from.addr(), sent: now, moved: moved}
	if from.kind != Direct {
		a.w = w
	}
	for i := range p.requested {
		if o := &p.requested[i]; o.addr == a.addr && o.w == a.w && now.Sub(o.sent) < p.m.timing.First/2 {
			o.moved = o.moved || moved
			return o.id
		}
	}
	copy(p.requested[1:], p.requested[:])
	p.requested[0] = a
	return a.id
}

// answered returns when the ping with this number was sent by the path of the answer, and whether the peer has told that
// it has moved there. Ok is false if there is none: the answer is old, or came by another path.
func (p *peer) answered(id uint64, from origin, w *path, now time.Time) (sent time.Time, moved, ok bool) {
	if w != nil {
		if i := slices.IndexFunc(w.pending[:], func(g ping) bool { return g.id == id && !g.sent.IsZero() }); i >= 0 {
			sent, w.pending[i] = w.pending[i].sent, ping{}
			return sent, false, true
		}
	}
	i := slices.IndexFunc(p.requested[:], func(a requested) bool {
		return a.id == id && a.addr == from.addr() && (from.kind == Direct || a.w == w) && now.Sub(a.sent) < p.m.timing.Search
	})
	if i < 0 {
		return sent, false, false
	}
	a := p.requested[i]
	p.requested[i] = requested{}
	return a.sent, a.moved, true
}

// reply sends an answer by the path of what it answers.
func (p *peer) reply(msg message, from origin, w *path, send *[]func()) {
	packet := p.seal(msg)
	if from.kind == Direct {
		ep := from.ep
		*send = append(*send, func() { _ = p.m.write([][]byte{packet}, ep) })
	} else {
		*send = append(*send, func() { _ = w.send([][]byte{packet}) })
	}
}

// pinged answers a ping. On a path that does not work, and in an epoch that is not proved, the answer asks for one.
// Present: its epoch is proved. Fresh: nor was it received before.
func (p *peer) pinged(msg message, present, fresh bool, from origin, now time.Time, send *[]func()) {
	w := p.way(from)
	if w == nil && from.kind == Relay && !p.broker {
		w = p.add(&path{kind: Relay, via: from.via, source: pending}, now)
	}
	if w == nil && (from.kind != Direct || !p.permits(from.addr())) {
		return
	}
	answer := message{kind: bodyPong, id: msg.id, seen: from.addr()}
	if w == nil || !w.probe.alive || !present {
		moved := fresh && msg.flags&flagMoved != 0 && (w == nil || !w.probe.alive && now.Sub(w.proved) > time.Second)
		answer.request = p.request(from, w, moved, now)
	}
	p.reply(answer, from, w, send)
	if w == nil || !fresh {
		return
	}
	p.due = time.Time{}
	if slowly := now.Sub(w.pinged) >= p.m.timing.Active/2; slowly && p.best.Load() == w {
		w.probe.leave(now, w.proved, p.m.timing)
	}
	w.pinged = now
}

// ponged records that a path works, and proves the epoch of the answer.
func (p *peer) ponged(msg message, at stamp, from origin, now time.Time, send *[]func()) {
	w := p.way(from)
	sent, moved, ok := p.answered(msg.id, from, w, now)
	if !ok {
		return
	}
	if w == nil {
		if w = p.add(&path{kind: Direct, addr: from.addr(), source: learnt}, now); w == nil {
			return
		}
	}
	p.due = time.Time{}
	if p.epoch != at.epoch {
		p.epoch, p.listed, p.list = at.epoch, 0, nil
		p.window.Reset()
	}
	if msg.request != 0 {
		p.reply(message{kind: bodyPong, id: msg.request, seen: from.addr()}, from, w, send)
	}
	rtt := max(now.Sub(sent), time.Microsecond)
	first := !p.anyAlive()
	used := p.best.Load() == w
	news := w.probe.answered(now, rtt, p.m.timing, used)
	before := w.proved
	w.proved = now
	w.alive.Store(true)
	if w.kind == Direct {
		if w.addr == from.addr() {
			ep := from.ep
			w.ep.Store(&ep)
		}
		w.reported(msg.seen, now)
		if before.IsZero() || (*p.m.byAddr.Load())[w.addr] != p {
			p.m.index()
		}
	}
	if news {
		p.advertiseAt = now
		p.m.log.Debug("path answers", "peer", p.id, "path", describe(w), "rtt", rtt)
	}
	if moved { // it is there, and perhaps at no other address
		for _, o := range p.paths {
			if o != w && o.kind == Direct && o.probe.alive {
				o.probe.doubt(now)
				o.alive.Store(false)
			}
		}
	}
	p.choose(now)
	if news {
		p.m.news()
	}
	if p.best.Load() == w {
		if w.probe.fresh == 0 {
			w.probe.next = now.Add(p.m.timing.Active)
		}
		p.use()
	}
	if first {
		p.arise(w, send)
	}
	changes.Poke(p.m.kick)
}

// arise makes WireGuard start on the first working path: its next own try may be five seconds away.
func (p *peer) arise(w *path, send *[]func()) {
	if last := p.last.Swap(nil); last != nil {
		packet := *last
		*send = append(*send, func() { _ = w.send([][]byte{packet}) })
	}
	if d := p.m.device; d != nil && !p.broker && (w.stream == nil || !w.stream.begun) {
		p.m.later(func() { d.Wake(p.public) })
	}
}

// list is the peer's candidates, and the path by which they came.
type list struct {
	msg message
	by  *path
}

// receiveList keeps the newest candidates of the peer until they are taken.
func (p *peer) receiveList(msg message, at stamp, from origin) {
	w := p.way(from)
	if p.broker || p.m.cfg.Hub || w == nil || at.count < p.listed {
		return
	}
	if at.count == p.listed && (p.list == nil || p.list.by.probe.alive) {
		return // sent again: it does not take the place of the one that came by a path that works
	}
	p.list, p.listed, p.due = &list{msg: msg, by: w}, at.count, time.Time{}
	changes.Poke(p.m.kick)
}

// takeList makes the peer's newest candidates its addresses once the path by which they came works, one list each
// Advertise/5: each has every address pinged. It returns when to call again.
func (p *peer) takeList(now time.Time) time.Time {
	far := now.Add(time.Minute)
	if p.list == nil || !p.list.by.probe.alive {
		return far // an answer makes round due
	}
	if at := p.taken.Add(p.m.timing.Advertise / 5); at.After(now) {
		return at
	}
	msg := p.list.msg
	p.list, p.taken = nil, now
	var udp []netip.AddrPort
	for _, a := range msg.udp {
		if usable(a, p.never) && plausible(a) {
			udp = append(udp, a)
		}
	}
	p.offer(udp, advertised, now)
	p.advertisedTCP = slices.DeleteFunc(slices.Clone(msg.tcp), func(a netip.AddrPort) bool { return !usable(a, p.never) || a.Addr().IsLoopback() }) // mayDial decides which of them are dialled
	if p.lost.IsZero() {
		return far
	}
	for _, w := range p.paths {
		if w.kind == Direct && !w.probe.alive {
			w.probe.again(now)
		}
	}
	if now.Sub(p.advertisedAt) > p.m.timing.Advertise/2 {
		p.advertiseAt = now // both have to ping at the same time
	}
	return far
}
