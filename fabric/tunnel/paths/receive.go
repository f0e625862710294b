package paths

import (
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
	body, err := secret.open(packet)
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
		p.due = time.Time{}
		switch msg.kind {
		case bodyPing:
			p.pinged(msg, from, now, &send)
		case bodyPong:
			p.ponged(msg, from, now, &send)
		case bodyCandidates:
			p.receiveCandidates(msg, now)
		}
	}
	m.mu.Unlock()
	for _, f := range send {
		f()
	}
}

// way returns the path of a packet, a new one if it is unknown.
func (p *peer) way(from origin, now time.Time) *path {
	switch from.kind {
	case Stream:
		return from.w
	case Relay:
		if w := p.through(from.via); w != nil {
			return w
		}
		if p.broker {
			return nil
		}
		return p.add(Relay, netip.AddrPort{}, from.via, pending, now)
	}
	if w := p.at(from.addr()); w != nil {
		return w
	}
	return p.add(Direct, from.addr(), nil, learnt, now)
}

// pinged answers on the path of the ping, and pings on that path itself.
func (p *peer) pinged(msg message, from origin, now time.Time, send *[]func()) {
	w := p.way(from, now)
	if w == nil {
		return
	}
	answer := p.secret.seal(p.m.self, message{kind: bodyPong, id: msg.id, seen: from.addr()}.encode())
	if from.kind == Direct {
		ep := from.ep
		*send = append(*send, func() { _ = p.m.write([][]byte{answer}, ep) })
	} else {
		*send = append(*send, func() { _ = w.send([][]byte{answer}) })
	}
	if msg.flags&flagMoved != 0 && !w.probe.alive && now.Sub(w.proved) > time.Second {
		for _, o := range p.paths { // it is at its source address, and perhaps at no other
			if o != w && o.kind == Direct && o.probe.alive {
				o.probe.doubt(now)
				o.alive.Store(false)
			}
		}
		p.choose(now)
	}
	if slowly := now.Sub(w.pinged) >= p.m.timing.Active/2; slowly && p.best.Load() == w {
		w.probe.leave(now, w.proved, p.m.timing)
	}
	w.pinged = now
	if !w.probe.alive && now.Sub(w.lastPing()) > p.m.timing.First/2 {
		p.ping(w, now, send)
		changes.Poke(p.m.kick)
	}
}

func (w *path) lastPing() time.Time { return w.pending[0].sent }

// ponged records that a path works.
func (p *peer) ponged(msg message, from origin, now time.Time, send *[]func()) {
	w := p.way(from, now)
	if w == nil {
		return
	}
	i := slices.IndexFunc(w.pending[:], func(g ping) bool { return g.id == msg.id && !g.sent.IsZero() })
	if i < 0 {
		return // the answer came by another path: this one is tried by itself
	}
	rtt := max(now.Sub(w.pending[i].sent), time.Microsecond)
	w.pending[i] = ping{}
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
		if msg.seen.IsValid() && p.seen != msg.seen && usable(msg.seen, nil) {
			p.seen = msg.seen
			for _, o := range p.m.peers { // peers without a path get the new address of this device
				if !o.lost.IsZero() {
					o.advertiseAt, o.due = now, time.Time{}
				}
			}
		}
		if before.IsZero() || (*p.m.byAddr.Load())[w.addr] != p {
			p.m.index()
		}
	}
	if news {
		p.advertiseAt = now
		p.m.log.Debug("path answers", "peer", p.id, "path", describe(w), "rtt", rtt)
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

// receiveCandidates processes the peer's advertised addresses.
func (p *peer) receiveCandidates(msg message, now time.Time) {
	if p.broker || p.m.cfg.Hub {
		return
	}
	var udp []netip.AddrPort
	for _, a := range msg.udp {
		if usable(a, p.never) && plausible(a) {
			udp = append(udp, a)
		}
	}
	p.offer(udp, advertised, now)
	p.advertisedTCP = slices.DeleteFunc(slices.Clone(msg.tcp), func(a netip.AddrPort) bool { return !usable(a, p.never) || a.Addr().IsLoopback() }) // mayDial decides which of them are dialled
	if p.lost.IsZero() {
		return
	}
	for _, w := range p.paths {
		if w.kind == Direct && !w.probe.alive {
			w.probe.again(now)
		}
	}
	if now.Sub(p.advertisedAt) > p.m.timing.Advertise/2 {
		p.advertiseAt = now // both have to ping at the same time
	}
	changes.Poke(p.m.kick)
}
