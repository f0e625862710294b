package paths

import (
	"bytes"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"pgregory.net/rapid"
)

func drawOptions(t *rapid.T) []option {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) option {
		return option{
			kind:  rapid.SampledFrom([]Kind{Direct, Relay, Stream}).Draw(t, "kind"),
			alive: rapid.Bool().Draw(t, "alive"),
			rtt:   time.Duration(rapid.IntRange(1, 300000).Draw(t, "rtt")) * time.Microsecond,
		}
	}), 1, 6).Draw(t, "options")
}

func TestChoice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		options := drawOptions(t)
		current := rapid.IntRange(-1, len(options)-1).Draw(t, "current")
		settled := rapid.Bool().Draw(t, "settled")
		got := choose(options, current, settled)
		living := false
		for _, o := range options {
			living = living || o.alive
		}
		switch {
		case living && (got < 0 || !options[got].alive):
			t.Fatalf("%d is dead and others live", got)
		case !living && got != current:
			t.Fatalf("left %d for %d, and neither lives", current, got)
		}
		// What was chosen stays chosen while nothing changes: no path flaps.
		if again := choose(options, got, true); settled && again != got {
			t.Fatalf("first %d, then %d", got, again)
		}
		if got >= 0 && options[got].alive {
			for i, o := range options {
				if settled && o.alive && o.cost()+margin(options[got].cost()) < options[got].cost() {
					t.Fatalf("%d is clearly better than %d", i, got)
				}
			}
		}
	})
}

// One answer that had to wait on a busy machine does not keep a path from being used.
func TestOneSlowAnswerIsForgotten(t *testing.T) {
	now := time.Unix(1700000000, 0)
	var relay, direct probe
	relay.answered(now, 2*time.Millisecond, DefaultTiming, true)
	direct.answered(now, 400*time.Millisecond, DefaultTiming, false)
	for direct.next.Sub(now) < DefaultTiming.Standby {
		now = direct.next
		direct.sent(now, DefaultTiming, false)
		direct.answered(now, time.Millisecond, DefaultTiming, false)
	}
	options := []option{{kind: Relay, alive: true, rtt: relay.rtt}, {kind: Direct, alive: true, rtt: direct.rtt}}
	if choose(options, 0, false) != 1 {
		t.Errorf("still relayed: direct is at %s", direct.rtt)
	}
}

// Whatever comes and goes: a path is alive only if one of the last pings was
// answered, and a ping is always due within the longest interval.
func TestProbe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timing := DefaultTiming
		now := time.Unix(1700000000, 0)
		var p probe
		p.next = now
		unanswered := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"ping", "ping", "pong", "doubt"}).Draw(t, "step") {
			case "ping":
				now = p.next
				p.sent(now, timing, rapid.Bool().Draw(t, "direct"))
				unanswered++
			case "pong":
				rtt := time.Duration(rapid.IntRange(1, 2000).Draw(t, "rtt")) * time.Millisecond
				now = now.Add(rtt / 8)
				p.answered(now, rtt, timing, rapid.Bool().Draw(t, "used"))
				unanswered = 0
			case "doubt":
				p.doubt(now)
				if p.alive {
					t.Fatal("alive though in doubt")
				}
			}
			if p.alive && unanswered > timing.Misses {
				t.Fatalf("alive after %d unanswered pings", unanswered)
			}
			if wait := p.next.Sub(now); wait > timing.Idle || wait < 0 && p.alive {
				t.Fatalf("the next ping in %s", wait)
			}
		}
	})
}

func twoSecrets(t testing.TB) (a, b *secret, keyA, keyB Key) {
	t.Helper()
	w := newInternet(t)
	x, y := w.host("x", "192.0.2.1:1", nil), w.host("y", "192.0.2.2:1", nil)
	a, err := newSecret(x.private, y.public)
	if err != nil {
		t.Fatal(err)
	}
	b, err = newSecret(y.private, x.public)
	if err != nil {
		t.Fatal(err)
	}
	return a, b, x.public, y.public
}

func TestSealedIsForOneAndUnchanged(t *testing.T) {
	a, b, keyA, _ := twoSecrets(t)
	other, _, _, _ := twoSecrets(t)
	rapid.Check(t, func(t *rapid.T) {
		addr := rapid.Custom(func(t *rapid.T) netip.AddrPort {
			ip := netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip")))
			if rapid.Bool().Draw(t, "six") {
				ip = netip.AddrFrom16([16]byte(append([]byte{0x20}, rapid.SliceOfN(rapid.Byte(), 15, 15).Draw(t, "ip")...)))
			}
			return netip.AddrPortFrom(ip, rapid.Uint16().Draw(t, "port"))
		})
		at := stamp{epoch: rapid.Uint64().Draw(t, "epoch"), count: rapid.Uint64().Draw(t, "count")}
		m := message{kind: rapid.SampledFrom([]byte{bodyPing, bodyPong, bodyCandidates}).Draw(t, "kind")}
		switch m.kind {
		case bodyPing:
			m.id, m.flags = rapid.Uint64().Draw(t, "id"), rapid.Byte().Draw(t, "flags")
		case bodyPong:
			m.id, m.request, m.seen = rapid.Uint64().Draw(t, "id"), rapid.Uint64().Draw(t, "request"), addr.Draw(t, "seen")
		default:
			m.udp = rapid.SliceOfN(addr, 1, maxCandidates).Draw(t, "udp")
			m.tcp = rapid.SliceOfN(addr, 1, maxCandidates).Draw(t, "tcp")
		}
		packet := a.seal(shortOf(keyA), at, m.encode())
		got, body, err := b.open(packet)
		if err != nil || got != at {
			t.Fatal(err)
		}
		read, err := decode(append(body, 1, 2, 3)) // a later version says more
		if err != nil || !bytes.Equal(read.encode(), m.encode()) {
			t.Fatalf("%+v, %v, want %+v", read, err, m)
		}
		if _, _, err := other.open(packet); err == nil {
			t.Fatal("a third one can read it")
		}
		packet[rapid.IntRange(0, len(packet)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if _, _, err := b.open(packet); err == nil {
			t.Fatal("changed on the way and taken")
		}
		payload := rapid.SliceOfN(rapid.Byte(), 1, 1500).Draw(t, "payload")
		frame := append(make([]byte, relayHead), payload...)
		a.frame(frame, tag{1}, tag{2}, payload)
		if !b.framed(frame) || other.framed(frame) {
			t.Fatal("the frame is not by whom it is")
		}
		frame[rapid.IntRange(4, min(len(frame), relayHead+32)-1).Draw(t, "at")] ^= 1
		if b.framed(frame) {
			t.Fatal("a changed frame is taken")
		}
	})
}

// FuzzHear gives a manager whatever comes from the network.
func FuzzHear(f *testing.F) {
	w := newInternet(f)
	a, b := w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil)
	a.m = New(testTiming, func() {}, slog.New(slog.DiscardHandler))
	a.apply(true, b)
	ab, err := newSecret(b.private, a.public)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{magic}, false)
	f.Add(ab.seal(shortOf(b.public), stamp{epoch: 1}, message{kind: bodyPing, id: 7}.encode()), false)
	f.Add([]byte{bodyCandidates, 1, 4, 192, 0, 2, 9, 0, 1, 0}, true)
	f.Add(message{kind: bodyPong, id: 1, request: 2, seen: b.addr}.encode(), true)
	at := stamp{epoch: 1}
	a.m.byKey[b.public].epoch = at.epoch
	frame := append(make([]byte, relayHead), magic, kindRelay, 0, 0)
	ab.frame(frame, shortOf(b.public).tag(), shortOf(a.public).tag(), frame[relayHead:])
	f.Add(frame, false)
	f.Fuzz(func(t *testing.T, packet []byte, sealed bool) {
		if sealed {
			at.count++
			packet = ab.seal(shortOf(b.public), at, packet)
		}
		if len(packet) == 0 {
			return
		}
		a.m.receive(packet, origin{kind: Direct, ep: &conn.StdNetEndpoint{AddrPort: b.addr}})
		a.m.mu.Lock()
		defer a.m.mu.Unlock()
		for _, w := range a.m.byKey[b.public].paths {
			w.probe.alive = true
		}
		a.m.byKey[b.public].takeList(time.Now())
		if n := len(a.m.byKey[b.public].paths); n > maxPaths {
			t.Fatalf("%d paths", n)
		}
	})
}

// FuzzStream reads whatever a peer may write.
func FuzzStream(f *testing.F) {
	f.Add([]byte{0, 3, 1, 2, 3, 0, 0, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			p, err := readPacket(r)
			if err != nil {
				return
			}
			giveBuffer(p)
		}
	})
}

// What is carried for one peer is bounded, and not for good.
func TestCarriedRateIsBounded(t *testing.T) {
	var b bucket
	now := time.Unix(1700000000, 0)
	sent := 0
	for range 10000 {
		if b.take(1500, relayRate, now) {
			sent += 1500
		}
	}
	if sent > relayBurst {
		t.Errorf("%d bytes at once, want at most %d", sent, relayBurst)
	}
	if !b.take(1500, relayRate, now.Add(time.Second)) {
		t.Error("nothing a second later")
	}
	var hub Manager
	hub.hub.Store(true)
	b, sent = bucket{}, 0
	for ms := range 2000 { // a member of a broker that floods, for two seconds
		for range 100 {
			if b.take(1500, hub.rate(), now.Add(time.Duration(ms)*time.Millisecond)) {
				sent += 1500
			}
		}
	}
	if most := relayBurst + 2*hubRate; sent > most || sent < most/2 {
		t.Errorf("%d bytes in two seconds, want at most %d", sent, most)
	}
}
