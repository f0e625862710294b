package paths

import (
	"crypto/ecdh"
	"crypto/rand"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

// hubWorld is a broker, two members of a room behind NATs, and a member of another room.
func hubWorld(t *testing.T, symmetric bool) (w *internet, a, b, x, hub *host) {
	w = newInternet(t)
	hub = w.host("hub", "198.51.100.3:7442", nil)
	a = w.host("a", "10.1.0.2:7442", w.nat("198.51.100.1", symmetric))
	b = w.host("b", "10.2.0.2:7442", w.nat("198.51.100.2", symmetric))
	x = w.host("x", "198.51.100.9:7442", nil)
	hub.start(false)
	cfg := Config{Private: hub.private, Public: hub.public, UDP: []netip.AddrPort{hub.addr}, Relay: true, Hub: true}
	for h, room := range map[*host]string{a: "r", b: "r", x: "s"} {
		cfg.Peers = append(cfg.Peers, Peer{ID: h.name, Public: h.public, Room: room})
	}
	if err := hub.m.Apply(cfg); err != nil {
		t.Fatal(err)
	}
	member := func(h *host, peers ...*host) {
		h.start(true)
		cfg := Config{Private: h.private, Public: h.public, UDP: []netip.AddrPort{h.addr}, Relay: true,
			Peers: []Peer{{ID: "hub", Public: hub.public, UDP: []netip.AddrPort{hub.addr}, Broker: true}}}
		for _, p := range peers {
			cfg.Peers = append(cfg.Peers, Peer{ID: p.name, Public: p.public})
		}
		if err := h.m.Apply(cfg); err != nil {
			t.Fatal(err)
		}
	}
	member(a, b, x)
	member(b, a, x)
	member(x, a, b)
	return w, a, b, x, hub
}

// A broker relays within a room and to no other, and knows of nobody but those that ping it.
func TestBrokerRelaysWithinARoom(t *testing.T) {
	w, a, b, x, hub := hubWorld(t, true)
	awaitTalk(a, b)
	if got := a.awaitPath(b, "relayed", kind(Relay)); got.Via != "hub" {
		t.Errorf("%+v, want by the hub", got)
	}
	x.awaitPath(hub, "direct", kind(Direct))
	await.True(t, 10*time.Second, "x pings b by the hub, again and again", func() bool {
		x.m.mu.Lock()
		defer x.m.mu.Unlock()
		w := x.m.byKey[b.public].through(x.m.byKey[hub.public])
		return w != nil && (w.probe.tries > 3 || w.probe.alive)
	})
	if x.say(b, "from another room") || b.say(x, "to another room") {
		t.Error("relayed between rooms")
	}
	for _, h := range []*host{a, b, x} {
		if st := hub.m.Status(h.public); len(st) != 1 || st[0].Kind != Direct {
			t.Errorf("the hub knows of %s %+v, want the source of its packets", h.name, st)
		}
	}
	// What is no relay frame of a broker's is no packet of a peer's.
	at := a.nat.in
	w.mu.Lock()
	var outside netip.AddrPort
	for mapped, inside := range at {
		if inside == a.addr && a.nat.sent[[2]netip.AddrPort{mapped, hub.addr}] {
			outside = mapped
		}
	}
	w.mu.Unlock()
	w.carry(hub, outside, append([]byte{4, 0, 0, 0}, "raw"...))
	awaitTalk(a, b) // later than that
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, got := range a.got {
		if got == "hub: raw" {
			t.Error("a broker's packet went to WireGuard")
		}
	}
}

// A broker that sends old packets again, pings, pongs and candidates among them, changes no path.
func TestBrokerThatReplays(t *testing.T) {
	w, a, b, _, hub := hubWorld(t, false)
	awaitTalk(a, b)
	b.awaitPath(a, "direct", kind(Direct))
	w.mu.Lock()
	old := w.spied["a"]
	w.mu.Unlock()
	hub.m.mu.Lock()
	to := hub.m.byKey[b.public]
	hub.m.mu.Unlock()
	replayed := 0
	for range 3 {
		for _, packet := range old {
			src, dst, ok := relayed(packet)
			if !ok || dst != to.short.tag() {
				continue
			}
			again := append([]byte(nil), packet...)
			to.secretNow().frame(again[:relayHead], src, dst, again[relayHead:])
			w.carry(hub, hub.m.Status(b.public)[0].Addr, again)
			replayed++
		}
	}
	if replayed < 3 {
		t.Fatalf("%d packets replayed: this tests nothing", replayed)
	}
	awaitTalk(a, b)
	if got := b.path(a); got.Kind != Direct {
		t.Errorf("b uses %+v", got)
	}
}

// A direct path replaces the broker, as it does a common peer.
func TestBrokerIsReplacedByADirectPath(t *testing.T) {
	_, a, b, _, hub := hubWorld(t, false)
	awaitTalk(a, b)
	a.awaitPath(b, "direct", kind(Direct))
	b.awaitPath(a, "direct", kind(Direct))
	if hub.m.Relayed() == 0 {
		t.Error("the hub relayed nothing: they did not need it")
	}
}

// A member is in one room at a time, and no more when it is gone.
func TestBrokerForgetsAMember(t *testing.T) {
	_, a, b, _, hub := hubWorld(t, true)
	awaitTalk(a, b)
	cfg := Config{Private: hub.private, Public: hub.public, Relay: true, Hub: true, Peers: []Peer{
		{ID: "a", Public: a.public, Room: "other"}, {ID: "b", Public: b.public, Room: "r"},
	}}
	if err := hub.m.Apply(cfg); err != nil {
		t.Fatal(err)
	}
	await.True(t, 10*time.Second, "a has no path to b", func() bool { return !a.path(b).Alive && !a.say(b, "still there?") })
}

// A broker is the last way: a relay by a peer and a stream are better, unless they are much slower.
func TestBrokerIsTheLastWay(t *testing.T) {
	ms := time.Millisecond
	broker := option{kind: Relay, broker: true, alive: true, rtt: 2 * ms}
	for _, better := range []option{{kind: Direct, alive: true, rtt: 40 * ms}, {kind: Relay, alive: true, rtt: 20 * ms}, {kind: Stream, alive: true, rtt: 5 * ms}} {
		if i := choose([]option{broker, better}, 0, false); i != 1 {
			t.Errorf("the broker stays beside %+v", better)
		}
	}
	if i := choose([]option{broker, {kind: Direct, rtt: ms}}, 1, true); i != 0 {
		t.Error("a dead path stays beside the broker")
	}
}

// Members of two rooms with the same tag are two: frames go by room and tag. All that a hub relays has a bound.
func TestTagsAreOfARoom(t *testing.T) {
	hub, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[tag]Key{}
	var one, other Key
	for {
		var k Key
		rand.Read(k[:])
		if before, ok := seen[shortOf(k).tag()]; ok {
			one, other = before, k
			break
		}
		seen[shortOf(k).tag()] = k
	}
	m := New(DefaultTiming, func() {}, slog.New(slog.DiscardHandler))
	cfg := Config{Private: Key(hub.Bytes()), Public: Key(hub.PublicKey().Bytes()), Relay: true, Hub: true,
		Peers: []Peer{{ID: "a", Public: one, Room: "r"}, {ID: "x", Public: other, Room: "s"}}}
	for range 2 { // in any order
		if err := m.Apply(cfg); err != nil {
			t.Fatal(err)
		}
		a, x := m.tagged(shortOf(one).tag(), "r"), m.tagged(shortOf(one).tag(), "s")
		if a == nil || x == nil || a.id != "a" || x.id != "x" || m.tagged(shortOf(one).tag(), "q") != nil {
			t.Fatalf("%+v %+v", a, x)
		}
		slices.Reverse(cfg.Peers)
	}
	// Neither has a packet of the other one's.
	head, payload := make([]byte, relayHead), []byte("a packet")
	for _, of := range []string{"r", "s"} {
		p := m.tagged(shortOf(one).tag(), of)
		p.secretNow().frame(head, p.short.tag(), tag{1}, payload)
		if got := m.neighbour(append(slices.Clone(head), payload...), p.short.tag(), origin{kind: Direct}); got != p {
			t.Errorf("a frame of %s is taken for one of %+v", p.id, got)
		}
	}
	sent := 0
	for range 100 {
		for sent < 1<<30 && m.take(&peer{m: m}, 64<<10) {
			sent += 64 << 10
		}
	}
	if sent == 0 || sent >= 1<<30 {
		t.Errorf("%d bytes are relayed at once", sent)
	}
}
