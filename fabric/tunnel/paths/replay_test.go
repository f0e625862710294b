package paths

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"rivulet/test/harness/await"
)

// sealedBy returns the sealed messages that a host has sent, as somebody on the way has seen them.
func (w *internet) sealedBy(h *host) (out [][]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.spied[h.name] {
		if p[0] == magic && p[1] == kindControl {
			out = append(out, p)
		}
	}
	return out
}

// toPeer calls do with the host's state of a peer, under the lock.
func (h *host) toPeer(to *host, do func(*peer)) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	do(h.m.byKey[to.public])
}

// Messages of a peer that has moved, sent again from elsewhere, leave its path as it is: those that arrived, those that
// did not, and those of the time before it was started again.
func TestAReplayedMoveChangesNothing(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b, x := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil), w.host("x", "203.0.113.66:7442", nil)
	a.start(true, b)
	b.start(true, a)
	awaitTalk(a, b)
	b.m.Moved() // each ping of the next seconds says so
	w.setCut("a", "b", true)
	before := len(w.sealedBy(b))
	await.True(t, 5*time.Second, "pings of b are lost", func() bool { return len(w.sealedBy(b)) > before+2 })
	w.setCut("a", "b", false)
	awaitTalk(a, b)
	old := w.sealedBy(b)
	attack := func(what string) {
		t.Helper()
		a.awaitPath(b, "direct", func(s PathStatus) bool { return s.Alive && s.Addr == b.addr })
		var news atomic.Int64
		a.m.mu.Lock()
		a.m.changed = func() { news.Add(1) }
		a.m.mu.Unlock()
		for range 5 {
			for _, packet := range old {
				a.m.receive(packet, origin{kind: Direct, ep: &conn.StdNetEndpoint{AddrPort: x.addr}})
			}
		}
		// A ping that is late on a slow machine is news, too: of its loss, and of the next answer.
		if got := a.path(b); news.Load() > 2 || !got.Alive || got.Addr != b.addr {
			t.Errorf("%s: %d changes, path %+v", what, news.Load(), got)
		}
		if n := len(a.m.Status(b.public)); n != 1 {
			t.Errorf("%s: %d paths", what, n)
		}
	}
	attack("of this epoch")
	b.toPeer(a, func(p *peer) { p.sent = stamp{epoch: 99} })
	await.True(t, 5*time.Second, "a knows that b has started again", func() (known bool) {
		a.toPeer(b, func(p *peer) { known = p.epoch == 99 })
		return known
	})
	attack("of another epoch")
	awaitTalk(a, b)
}

// A list of addresses counts once, only in its order, and only by a path that works.
func TestAnOldListChangesNothing(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil)
	a.start(true, b)
	b.start(true, a)
	awaitTalk(a, b)
	first, second := netip.MustParseAddrPort("203.0.113.50:7442"), netip.MustParseAddrPort("203.0.113.51:7442")
	list := func(addr netip.AddrPort) (packet []byte) {
		b.toPeer(a, func(p *peer) { packet = p.seal(message{kind: bodyCandidates, udp: []netip.AddrPort{addr}}) })
		return packet
	}
	receive := func(packet []byte, from netip.AddrPort) {
		a.m.receive(packet, origin{kind: Direct, ep: &conn.StdNetEndpoint{AddrPort: from}})
	}
	has := func(addr netip.AddrPort) (has bool) {
		a.toPeer(b, func(p *peer) { has = p.at(addr) != nil })
		return has
	}
	old := list(first)
	receive(old, b.addr)
	await.True(t, 5*time.Second, "the first list is taken", func() bool { return has(first) })
	receive(list(second), b.addr)
	await.True(t, 5*time.Second, "the second list is taken", func() bool { return has(second) && !has(first) })
	receive(old, b.addr)
	receive(list(first), netip.MustParseAddrPort("203.0.113.66:7442"))
	b.toPeer(a, func(p *peer) { // of the time before b was started again
		was := p.sent
		p.sent = stamp{epoch: 3, count: 1 << 40}
		receive(p.seal(message{kind: bodyCandidates, udp: []netip.AddrPort{first}}), b.addr)
		p.sent = was
	})
	a.toPeer(b, func(p *peer) {
		if p.list != nil {
			t.Error("an old list, or one from elsewhere, waits to be taken")
		}
	})
}

// A list that waits to be taken is not replaced by itself, sent again by a path that does not work.
func TestAListKeepsItsPath(t *testing.T) {
	p := &peer{m: New(testTiming, func() {}, nil)}
	works, dead := &path{kind: Stream, peer: p}, &path{kind: Stream, peer: p}
	works.probe.alive = true
	for _, by := range []*path{dead, works, dead} {
		p.receiveList(message{kind: bodyCandidates}, stamp{count: 7}, origin{kind: Stream, w: by})
	}
	if p.list == nil || p.list.by != works {
		t.Error("the list waits for another path than the one that works")
	}
}

// Addresses that anybody may have announced are dialled after those that the peer itself has told.
func TestAnnouncedAddressesAreDialledLast(t *testing.T) {
	own, told, said := netip.MustParseAddrPort("10.0.0.1:7442"), netip.MustParseAddrPort("10.0.0.1:443"), netip.MustParseAddrPort("10.0.0.9:7442")
	p := &peer{m: New(testTiming, func() {}, nil), tcp: []netip.AddrPort{own}, advertisedTCP: []netip.AddrPort{told}, announcedTCP: []netip.AddrPort{said, told}}
	if got := p.streamAddrs(); !slices.Equal(got, []netip.AddrPort{own, told, said}) {
		t.Errorf("%v", got)
	}
}

// Lists that a peer sends without pause are taken one each Advertise/5.
func TestListsInATime(t *testing.T) {
	p := &peer{m: New(testTiming, func() {}, nil)}
	by := &path{kind: Direct, peer: p}
	by.probe.alive = true
	now := time.Unix(1700000000, 0)
	taken := 0
	for end := now.Add(10 * testTiming.Advertise); now.Before(end); now = now.Add(time.Millisecond) {
		p.list = &list{by: by}
		if p.takeList(now); p.list == nil {
			taken++
		}
	}
	if taken != 50 {
		t.Errorf("%d lists were taken in 10 Advertise, want 50", taken)
	}
}

// No address is sent more bytes than were received in its name, until it has answered: by a peer that forges the source
// of its pings, at a device, at a broker, and where the handshake of WireGuard has no other address to go to.
func TestNoMoreThanWasReceived(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"device", "broker", "lost"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			w := newInternet(t)
			a, b, v := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil), w.host("v", "203.0.113.9:7442", nil)
			a.start(true, b)
			if where != "device" {
				cfg := Config{Private: a.private, Public: a.public, Hub: where == "broker", Peers: []Peer{{ID: "b", Public: b.public}}}
				if err := a.m.Apply(cfg); err != nil {
					t.Fatal(err)
				}
			}
			if where != "lost" {
				b.start(true, a)
				a.awaitPath(b, "direct", kind(Direct))
			}
			secret, err := newSecret(b.private, a.public)
			if err != nil {
				t.Fatal(err)
			}
			from := stamp{epoch: 7}
			a.toPeer(b, func(p *peer) { from = stamp{epoch: p.epoch, count: 1000} })
			received := 0
			send := func(m message) {
				from.count++
				packet := secret.seal(shortOf(b.public), from, m.encode())
				received += len(packet)
				a.m.receive(packet, origin{kind: Direct, ep: &conn.StdNetEndpoint{AddrPort: v.addr}})
			}
			for i := range 4 {
				send(message{kind: bodyPing, id: uint64(i), flags: flagMoved})
				send(message{kind: bodyPong, id: uint64(i), request: 5, seen: a.addr})
				send(message{kind: bodyCandidates, udp: []netip.AddrPort{v.addr}})
			}
			handshake := make([]byte, initiationSize)
			binary.LittleEndian.PutUint32(handshake, initiation)
			var end *Endpoint
			a.toPeer(b, func(p *peer) { end = p.end })
			_ = a.bind.Send([][]byte{handshake}, end) // without a path it fails
			begun := time.Now()
			await.True(t, 20*time.Second, "the answers and many intervals", func() bool {
				return len(v.in) >= 4 && time.Since(begun) > testTiming.Forget/2
			})
			sent, n := 0, len(v.in)
			for range n {
				sent += len((<-v.in).packet)
			}
			if sent > received {
				t.Errorf("%d bytes in %d packets for %d received", sent, n, received)
			}
			if slices.ContainsFunc(a.m.Status(b.public), func(s PathStatus) bool { return s.Addr == v.addr }) {
				t.Error("an address that has not answered is a path")
			}
		})
	}
}

// A ping tells once that the peer is alive.
func TestAPingCountsOnce(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil)
	a.start(true, b)
	b.start(true, a)
	a.awaitPath(b, "direct", kind(Direct))
	a.toPeer(b, func(p *peer) {
		var send []func()
		from := origin{kind: Direct, ep: &conn.StdNetEndpoint{AddrPort: b.addr}}
		w, now := p.at(b.addr), time.Now()
		for i, at := range []stamp{{p.epoch, 5000}, {p.epoch, 5001}, {p.epoch, 5000}, {p.epoch + 1, 5002}} {
			p.handle(message{kind: bodyPing, id: 1}, at, from, now.Add(time.Duration(i)), &send)
		}
		if w.pinged != now.Add(1) || len(send) != 4 {
			t.Errorf("the last one that counts is at %s, %d answers, want the second, 4", w.pinged.Sub(now), len(send))
		}
	})
}

// A ping or pong that is shorter than its answer is no message.
func TestShortMessagesAreRefused(t *testing.T) {
	for _, kind := range []byte{bodyPing, bodyPong} {
		body := message{kind: kind, id: 1}.encode()
		if _, err := decode(body); err != nil {
			t.Error(err)
		}
		if _, err := decode(body[:len(body)-1]); err == nil {
			t.Errorf("kind %d: the answer would be longer than the message", kind)
		}
	}
}
