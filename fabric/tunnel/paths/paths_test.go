package paths

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

func kind(k Kind) func(PathStatus) bool { return func(s PathStatus) bool { return s.Kind == k } }

func TestTwoOnALink(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil)
	a.start(true, b)
	b.start(true, a)
	awaitTalk(a, b)
	got := a.awaitPath(b, "direct", kind(Direct))
	if got.Addr != b.addr || got.RTT <= 0 {
		t.Errorf("%+v, want b's address with a round trip time", got)
	}
}

// One side behind a NAT: the other learns where it is.
func TestOneBehindNAT(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a := w.host("a", "10.0.0.5:7442", w.nat("198.51.100.1", true))
	c := w.host("c", "192.0.2.3:7442", nil)
	a.start(true, c)
	c.start(true, a)
	awaitTalk(a, c)
	got := c.awaitPath(a, "direct", kind(Direct))
	if got.Addr.Addr() != a.nat.public {
		t.Errorf("%+v, want an address of the NAT", got)
	}
	if seen := a.m.Seen(); len(seen) != 1 || seen[0] != got.Addr {
		t.Errorf("a is seen at %v, want %v", seen, got.Addr)
	}
}

func bothBehindNAT(t *testing.T, symmetric bool) (w *internet, a, b, c *host) {
	w = newInternet(t)
	a = w.host("a", "10.0.0.5:7442", w.nat("198.51.100.1", symmetric))
	b = w.host("b", "10.0.1.5:7442", w.nat("198.51.100.2", symmetric))
	c = w.host("c", "192.0.2.3:7442", nil)
	return
}

func TestBothBehindNATPunch(t *testing.T) {
	t.Parallel()
	_, a, b, c := bothBehindNAT(t, false)
	c.start(true, a, b)
	a.start(true, b, c)
	b.start(true, a, c)
	awaitTalk(a, b)
	a.awaitPath(b, "direct", kind(Direct))
	b.awaitPath(a, "direct", kind(Direct))
	if n := c.m.Relayed(); n == 0 {
		t.Error("c carried nothing: how did they know?")
	}
	awaitTalk(a, b)
}

func TestBothBehindSymmetricNATRelay(t *testing.T) {
	t.Parallel()
	w, a, b, c := bothBehindNAT(t, true)
	c.start(true, a, b)
	a.start(true, b, c)
	b.start(true, a, c)
	awaitTalk(a, b)
	if got := a.awaitPath(b, "carried", kind(Relay)); got.Via != "c" {
		t.Errorf("%+v, want via c", got)
	}
	if !a.say(b, "a secret of a and b") {
		t.Fatal("lost")
	}
	// What c sends on is the packet as it came, behind another head. (Here the packet
	// is plain text; in the product it is WireGuard's.)
	w.mu.Lock()
	found := false
	for _, p := range w.spied["c"] {
		found = found || bytes.HasSuffix(p, []byte("a secret of a and b")) && p[0] == magic && p[1] == kindRelay && len(p) == relayHead+4+19
	}
	w.mu.Unlock()
	if !found {
		t.Error("c did not carry the packet")
	}
}

func TestNobodyIsCarriedWhereThatIsOff(t *testing.T) {
	t.Parallel()
	_, a, b, c := bothBehindNAT(t, true)
	c.start(false, a, b)
	a.start(true, b, c)
	b.start(true, a, c)
	awaitTalk(a, c)
	awaitTalk(b, c)
	deadline := time.Now().Add(3 * testTiming.Advertise)
	for time.Now().Before(deadline) {
		if a.say(b, "hello") {
			t.Fatal("carried all the same")
		}
	}
	if c.m.Relayed() != 0 {
		t.Error("c carried something")
	}
	c.apply(true, a, b)
	awaitTalk(a, b)
}

// A relay serves its own peers only.
func TestStrangersAreNotCarried(t *testing.T) {
	t.Parallel()
	_, a, b, c := bothBehindNAT(t, true)
	c.start(true, b) // not a
	a.start(true, b, c)
	b.start(true, a, c)
	awaitTalk(b, c)
	deadline := time.Now().Add(3 * testTiming.Advertise)
	for time.Now().Before(deadline) {
		if a.say(b, "hello") {
			t.Fatal("a stranger was carried")
		}
	}
}

func TestOneSideMoves(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil)
	a.start(true, b)
	b.start(true, a)
	awaitTalk(a, b)
	b.move("192.0.2.77:7442")
	b.m.Moved()
	took := awaitTalk(a, b)
	if a.awaitPath(b, "at the new address", func(s PathStatus) bool { return s.Addr == b.addr }); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
}

// A peer that has another key is where it was: nothing has to be found again.
func TestAnotherKey(t *testing.T) {
	t.Parallel()
	_, a, b, c := bothBehindNAT(t, true)
	c.start(true, a, b)
	a.start(true, b, c)
	b.start(true, a, c)
	awaitTalk(a, b)
	fresh := a.w.host("b2", "10.99.0.1:7442", nil) // only for its keys
	b.private, b.public = fresh.private, fresh.public
	for _, h := range []*host{c, a, b} {
		peers := map[*host][]*host{a: {b, c}, b: {a, c}, c: {a, b}}[h]
		h.apply(true, peers...)
	}
	took := awaitTalk(a, b)
	a.awaitPath(b, "carried", kind(Relay))
	t.Logf("after %s", took)
}

// Both move at once: each tells c, and they find each other again through it.
func TestBothMoveAtOnce(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b, c := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil), w.host("c", "192.0.2.3:7442", nil)
	c.start(true, a, b)
	a.start(true, b, c)
	b.start(true, a, c)
	awaitTalk(a, b)
	awaitTalk(a, c)
	awaitTalk(b, c)
	a.move("192.0.2.51:7442")
	b.move("192.0.2.52:7442")
	a.apply(true, &host{name: "b", public: b.public, addr: netip.MustParseAddrPort("192.0.2.2:7442")}, c) // what it knows is old
	b.apply(true, &host{name: "a", public: a.public, addr: netip.MustParseAddrPort("192.0.2.1:7442")}, c)
	a.m.Moved()
	b.m.Moved()
	took := awaitTalk(a, b)
	a.awaitPath(b, "direct again", func(s PathStatus) bool { return s.Kind == Direct && s.Addr == b.addr })
	t.Logf("back after %s", took)
}

// An address that the peer does not answer from is no path.
func TestAnAnswerFromElsewhereProvesNothing(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil)
	other := w.host("b2", "203.0.113.2:7442", nil) // b hears there too
	other.in = b.in
	w.setDelay("a", "b", 40*time.Millisecond)
	a.start(true, b)
	b.start(true, a)
	a.awaitPath(b, "direct", kind(Direct))
	cfg := Config{Private: a.private, Public: a.public, UDP: []netip.AddrPort{a.addr}, Peers: []Peer{{ID: "b", Public: b.public, UDP: []netip.AddrPort{b.addr, other.addr}}}}
	if err := a.m.Apply(cfg); err != nil {
		t.Fatal(err)
	}
	await.True(t, 10*time.Second, "the other address is tried", func() bool {
		a.m.mu.Lock()
		defer a.m.mu.Unlock()
		w := a.m.byKey[b.public].at(other.addr)
		return w != nil && w.probe.tries > 3
	})
	if got := a.path(b); got.Addr != b.addr {
		t.Errorf("%+v: a path that is answered from elsewhere was taken", got)
	}
}

// A peer that speaks WireGuard alone is reached where it was configured, and roams.
func TestAPeerWithoutPaths(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil)
	b.deaf = true
	a.start(true, b)
	b.start(true, a)
	b.m.SetDevice(nil)
	await.True(t, 5*time.Second, "something arrives", func() bool {
		a.mu.Lock()
		ep := a.used[b.public]
		a.mu.Unlock()
		if ep != nil {
			a.bind.Send([][]byte{{4, 0, 0, 0, 'h', 'i'}}, ep)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.got) > 0 && b.got[0] == "192.0.2.1:7442: hi"
	})
}

// listen has the host take streams on loopback.
func (h *host) listen(t *testing.T) netip.AddrPort {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			h.m.Accept(context.Background(), c, nil)
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

// Where UDP does not pass, a stream carries it; when UDP passes again, that does.
func TestStreamWhereUDPIsCut(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil)
	w.setCut("a", "b", true)
	b.start(true, a)
	a.start(true)
	at := b.listen(t)
	apply := func() {
		cfg := Config{Private: a.private, Public: a.public, UDP: []netip.AddrPort{a.addr},
			Peers: []Peer{{ID: "b", Public: b.public, UDP: []netip.AddrPort{b.addr}, TCP: []netip.AddrPort{at}}}}
		if err := a.m.Apply(cfg); err != nil {
			t.Fatal(err)
		}
	}
	apply()
	awaitTalk(a, b)
	if got := a.awaitPath(b, "a stream", kind(Stream)); got.Addr != at {
		t.Errorf("%+v, want %s", got, at)
	}
	b.awaitPath(a, "a stream", kind(Stream))
	big := string(bytes.Repeat([]byte("x"), 1900))
	if !a.say(b, big) || !b.say(a, big) {
		t.Error("a long packet is lost")
	}
	w.setCut("a", "b", false)
	a.awaitPath(b, "direct", kind(Direct))
	awaitTalk(a, b)
	await.NoError(t, t.Context(), 20*time.Second, "the stream is closed", func() error {
		if s := b.m.Status(a.public); len(s) != 1 || s[0].Kind != Direct {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// A host that has moved doubts all its paths, and keeps a stream whose other end still answers.
func TestAStreamOutlivesADoubt(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil)
	w.setCut("a", "b", true)
	b.start(true, a)
	a.start(true)
	cfg := Config{Private: a.private, Public: a.public, Peers: []Peer{{ID: "b", Public: b.public, TCP: []netip.AddrPort{b.listen(t)}}}}
	if err := a.m.Apply(cfg); err != nil {
		t.Fatal(err)
	}
	a.awaitPath(b, "a stream", kind(Stream))
	b.awaitPath(a, "a stream", kind(Stream))
	the := func(h, other *host) *stream {
		h.m.mu.Lock()
		defer h.m.mu.Unlock()
		for _, p := range h.m.byKey[other.public].paths {
			if p.stream != nil {
				p.proved, p.made = p.proved.Add(-time.Minute), p.made.Add(-time.Minute) // the other end sends the pings
				return p.stream
			}
		}
		return nil
	}
	for range 20 {
		before := [2]*stream{the(a, b), the(b, a)}
		a.m.Moved()
		b.m.Moved()
		awaitTalk(a, b)
		if after := [2]*stream{the(a, b), the(b, a)}; before != after || after[0] == nil {
			t.Fatalf("streams %v, and before %v", after, before)
		}
	}
}

// Whoever answers at the address without the peer's key is no stream.
func TestStreamOfAStranger(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b, x := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil), w.host("x", "192.0.2.9:7442", nil)
	w.setCut("a", "b", true)
	x.start(true, a) // it knows a, and is not b
	a.start(true)
	at := x.listen(t)
	cfg := Config{Private: a.private, Public: a.public, UDP: []netip.AddrPort{a.addr},
		Peers: []Peer{{ID: "b", Public: b.public, TCP: []netip.AddrPort{at}}}}
	if err := a.m.Apply(cfg); err != nil {
		t.Fatal(err)
	}
	await.True(t, 3*time.Second, "it dials twice", func() bool {
		a.m.mu.Lock()
		defer a.m.mu.Unlock()
		return a.m.byKey[b.public].dials > 1
	})
	if s := a.path(b); s.Alive {
		t.Errorf("%+v: a stranger's stream is used", s)
	}
}

// Two streams and a relay: a and b reach c by TCP only, and each other through it.
func TestRelayOverStreams(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b, c := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil), w.host("c", "192.0.2.3:7442", nil)
	for _, p := range [][2]string{{"a", "b"}, {"a", "c"}, {"b", "c"}} {
		w.setCut(p[0], p[1], true)
	}
	c.start(true, a, b)
	at := c.listen(t)
	for _, h := range []*host{a, b} {
		other := map[*host]*host{a: b, b: a}[h]
		h.start(true)
		cfg := Config{Private: h.private, Public: h.public, UDP: []netip.AddrPort{h.addr}, Peers: []Peer{
			{ID: "c", Public: c.public, TCP: []netip.AddrPort{at}}, {ID: other.name, Public: other.public}}}
		if err := h.m.Apply(cfg); err != nil {
			t.Fatal(err)
		}
	}
	awaitTalk(a, b)
	a.awaitPath(b, "carried", kind(Relay))
}

// A link at rest: one side pings the path in use, the other one now and then.
func TestQuietLink(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil)
	timing := testTiming
	timing.Standby = 10 * timing.Active
	a.timing, b.timing = &timing, &timing
	a.start(true, b)
	b.start(true, a)
	awaitTalk(a, b)
	sent := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.spied["a"]) + len(w.spied["b"])
	}
	const intervals = 12
	most := 2*intervals + 2*2 + 2 // ping and pong of one side; of the other, one in ten; and what is under way
	await.NoError(t, t.Context(), 30*time.Second, fmt.Sprintf("%d packets at most in %v", most, intervals*timing.Active), func() error {
		before, begun := sent(), time.Now()
		await.True(t, time.Minute, "some intervals", func() bool { return time.Since(begun) >= intervals*timing.Active })
		if n := sent() - before; n > most || n < intervals {
			return fmt.Errorf("%d packets", n)
		}
		return nil
	})
}

// Addresses that somebody announces in a peer's name take a few places of the table, open no port of a service, and keep
// out neither the peer at a new address nor a stream.
func TestAnnouncedAddressesLeaveRoom(t *testing.T) {
	t.Parallel()
	w := newInternet(t)
	a, b := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil)
	a.start(true)
	b.start(true, a)
	b.move("192.0.2.77:7442")
	known := Peer{ID: "b", Public: b.public, UDP: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:7442")}}
	for i := range 300 {
		dead := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), uint16(7000+i))
		known.AnnouncedUDP, known.AnnouncedTCP = append(known.AnnouncedUDP, dead), append(known.AnnouncedTCP, dead)
	}
	if err := a.m.Apply(Config{Private: a.private, Public: a.public, UDP: []netip.AddrPort{a.addr}, Peers: []Peer{known}}); err != nil {
		t.Fatal(err)
	}
	taken := 0
	for _, s := range a.m.Status(b.public) {
		if netip.MustParsePrefix("203.0.113.0/24").Contains(s.Addr.Addr()) {
			taken++
		}
	}
	if taken != maxAnnounced {
		t.Errorf("%d paths to announced addresses, want %d", taken, maxAnnounced)
	}
	a.awaitPath(b, "direct", func(s PathStatus) bool { return s.Addr == b.addr })
	a.toPeer(b, func(p *peer) {
		site := netip.MustParseAddrPort("192.168.7.7:7442")
		p.announcedTCP = []netip.AddrPort{site}
		p.add(&path{kind: Direct, addr: site, source: announced}, time.Now())
		if p.mayDial(netip.AddrPortFrom(site.Addr(), 22)) {
			t.Error("an announced address of the site has a port of a service dialled")
		}
		for i := range maxPaths {
			p.add(&path{kind: Direct, addr: netip.AddrPortFrom(site.Addr(), uint16(8000+i)), source: announced}, time.Now())
		}
		if p.add(&path{kind: Stream, addr: site, source: pending, stream: &stream{}}, time.Now()) == nil || p.at(b.addr) == nil {
			t.Error("dead addresses keep a stream out, or the path that works")
		}
		p.paths = p.paths[:len(p.paths)-1] // it is none
	})
}
