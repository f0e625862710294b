package paths

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// witness is a peer with a path that works, by which it has told an address of this device.
type witness struct {
	at, tells string
	broker    bool
}

// reported returns a manager whose peers have reported these addresses, one after the other.
func reported(t testing.TB, words ...witness) *Manager {
	w := newInternet(t)
	a := w.host("a", "10.0.0.5:7442", nil)
	m := New(testTiming, func() {}, slog.New(slog.DiscardHandler))
	cfg := Config{Private: a.private, Public: a.public, UDP: []netip.AddrPort{a.addr}}
	for i, word := range words {
		h := w.host(string(rune('b'+i)), word.at, nil)
		cfg.Peers = append(cfg.Peers, Peer{ID: h.name, Public: h.public, UDP: []netip.AddrPort{h.addr}, Broker: word.broker})
	}
	if err := m.Apply(cfg); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1700000000, 0)
	for i, c := range cfg.Peers {
		p := m.byKey[c.Public]
		p.paths[0].probe.alive = true
		p.paths[0].reported(netip.MustParseAddrPort(words[i].tells), now.Add(time.Duration(i)*time.Second))
	}
	return m
}

const truth = "198.51.100.1:20000"

// Who invents peers does not decide at which addresses all peers look for this device.
func TestFalseWordsLeaveTheTruth(t *testing.T) {
	lies := []string{"1.0.0.1:7442", "1.0.0.2:7442", "1.0.0.3:7442", "1.0.0.4:7442"}
	liars := func(addrs ...string) (out []witness) {
		for i, at := range addrs {
			out = append(out, witness{at: at, tells: lies[i]})
		}
		return out
	}
	lan := liars("10.0.0.61:7442", "10.0.0.62:7442", "10.0.0.63:7442", "10.0.0.64:7442")
	far := liars("192.0.2.1:7442", "198.18.1.1:7442", "203.0.113.1:7442", "198.18.7.1:7442")
	for what, words := range map[string][]witness{
		"one of elsewhere, beside four of the LAN": append(lan, witness{at: "192.0.2.9:7442", tells: truth}),
		"the broker, beside four of four networks": append(far, witness{at: "198.18.9.1:7443", tells: truth, broker: true}),
		"two that agree, beside four that do not":  append(far, witness{at: "198.18.9.1:7442", tells: truth}, witness{at: "198.18.8.1:7442", tells: truth}),
		"the first, beside four of other networks": append([]witness{{at: "198.18.9.1:7442", tells: truth}}, far...),
	} {
		got := reported(t, words...).Seen()
		if !slices.Contains(got, netip.MustParseAddrPort(truth)) || len(got) > maxReflexive {
			t.Errorf("%s: %v, want %s among them", what, got, truth)
		}
	}
	if got := reported(t, lan...).Seen(); len(got) != 1 {
		t.Errorf("four of one network: %v, want one", got)
	}
	if got := reported(t, witness{"192.0.2.9:7442", "127.0.0.1:7442", false}, witness{"203.0.113.9:7442", "203.0.113.7:25", false}).Seen(); len(got) != 0 {
		t.Errorf("%v cannot be this device", got)
	}
}

// A word ends with the path by which it came, and an address that changes all the time is not advertised all the time.
func TestWordsEndAndAreNotRepeated(t *testing.T) {
	m := reported(t, witness{at: "192.0.2.9:7442", tells: truth}, witness{at: "203.0.113.9:7442", tells: "1.0.0.1:7442"})
	var liar, lost *peer
	for _, p := range m.peers {
		if p.id == "c" {
			liar = p
		} else {
			lost = p
		}
	}
	now := time.Unix(1700000100, 0)
	lost.advertisedAt, lost.advertiseAt = now, time.Time{}
	for i := range 100 {
		liar.paths[0].reported(netip.AddrPortFrom(netip.MustParseAddr("1.0.0.1"), uint16(2000+i)), now.Add(time.Duration(i)*time.Millisecond))
		if at := lost.advertiseAt; at.Sub(now) < testTiming.Advertise/5 {
			t.Fatalf("told again after %s", at.Sub(now))
		}
	}
	liar.paths[0].probe.alive = false
	if got := m.Seen(); len(got) != 1 || got[0].String() != truth {
		t.Errorf("%v, want %s alone", got, truth)
	}
}

// Whatever is told, in whatever order: the list is bounded, has no address twice, and has that of a broker.
func TestReflexiveAddresses(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		words := []witness{{at: "198.18.9.1:7443", tells: truth, broker: true}}
		for i := range rapid.IntRange(0, 12).Draw(r, "peers") {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 19, byte(rapid.IntRange(0, 5).Draw(r, "network")), byte(i + 1)}), 7442)
			tells := netip.AddrPortFrom(netip.AddrFrom4([4]byte{1, 0, 0, byte(i)}), 7442)
			words = append(words, witness{at: at.String(), tells: tells.String()})
		}
		got := reported(t, rapid.Permutation(words).Draw(r, "order")...).Seen()
		sorted := slices.SortedFunc(slices.Values(got), netip.AddrPort.Compare)
		if len(got) == 0 || got[0].String() != truth || len(got) > maxReflexive || len(slices.Compact(sorted)) != len(got) {
			r.Fatalf("%v of %v", got, words)
		}
	})
}
