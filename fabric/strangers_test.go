package fabric

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/static"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// Somebody announces thousands of clusters that are not there. Peers stay, and a
// real newcomer is found and becomes a peer all the same.
func TestFloodOfStrangers(t *testing.T) {
	w := newWorld(t)
	a := w.cluster(1, "a")
	b := w.cluster(2, "b")
	a.awaitState(b, peer.Connected)
	flood := func(from, to int) {
		for n := from; n < to; n++ {
			id := peer.ID(fmt.Sprintf("%032d", n))
			// Nobody is at these addresses; loopback refuses at once.
			addr := netip.AddrFrom4([4]byte{127, 77, byte(n >> 8), byte(n)})
			a.exchanger.discovered("flood", discovery.Event{Kind: discovery.Added, Entry: discovery.Entry{Key: string(id), ID: id, Addrs: []netip.AddrPort{netip.AddrPortFrom(addr, 7442)}}})
		}
	}
	flood(0, 2000)
	c := w.cluster(3, "c")
	flood(2000, 4000)
	a.awaitState(c, peer.Connected)
	a.awaitState(b, peer.Connected)
	if n := len(a.Peers()); n > maxStrangers+3 {
		t.Errorf("%d clusters are remembered", n)
	}
}

// A device at an address that the user wrote down is set up anew, with another identity:
// the new cluster is found there, and becomes a peer.
func TestAnotherClusterAtAStaticAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	written := static.New()
	a := w.cluster(1, "a", func(c *Config) { c.Sources = []discovery.Source{written} })
	b := w.cluster(2, "b", func(c *Config) { c.Sources = nil })
	written.Set(netip.AddrPortFrom(onLAN, b.cfg.Port))
	a.awaitState(b, peer.Connected)
	b.stop()
	c := w.cluster(3, "c", func(c *Config) { c.Sources, c.Port = nil, b.cfg.Port })
	a.awaitState(c, peer.Connected)
}

// A stranger that has proved who it is outlasts any number that have not.
func TestProvedStrangersStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.cluster(1, "a", func(c *Config) { c.Trust = Policy{Why: "a test"} })
	b := w.cluster(2, "b")
	a.await("word from b", func() bool { return a.real(b.cfg.Identity.ID) })
	for n := range 1000 {
		id := peer.ID(fmt.Sprintf("%032d", n))
		a.exchanger.discovered("flood", discovery.Event{Kind: discovery.Added, Entry: discovery.Entry{Key: string(id), ID: id, Addrs: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:7442")}}})
	}
	if a.view(b).ID == "" || !a.real(b.cfg.Identity.ID) {
		t.Error("b was pushed out by clusters that are not there")
	}
	if n := len(a.Peers()); n > maxStrangers {
		t.Errorf("%d clusters are remembered", n)
	}
}

// Throw-away keys, each with a valid identity, neither push out a stranger of another machine that waits for a person, nor
// keep out one that is only announced.
func TestThrowAwayKeysDoNotFillTheList(t *testing.T) {
	t.Parallel()
	for what, from := range map[string]func(n int) netip.Addr{
		"one address":          func(int) netip.Addr { return netip.MustParseAddr("192.0.2.66") },
		"one hardware address": func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 66, byte(n >> 8), byte(n)}) },
		"one network of IPv6": func(n int) netip.Addr {
			return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 14: byte(n >> 8), 15: byte(n)})
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			a := w.cluster(1, "a", asking, alone, func(c *Config) {
				c.Timing.Forget = time.Hour
				c.Hardware = func(a netip.Addr) string {
					if a.Is4() && a.As4()[0] == 10 {
						return "02:00:00:00:00:66"
					}
					return ""
				}
			})
			refused := &rpc.Error{Code: "pending"}
			waits, announced := peer.ID(strings.Repeat("w", 32)), peer.ID(strings.Repeat("x", 32))
			calls := func(id peer.ID, at netip.Addr) {
				a.exchanger.received(pairing.Sender{ID: id, Addr: at}, pairing.Message{Name: "s", ControlPort: 7442}, refused)
			}
			calls(waits, netip.MustParseAddr("192.0.2.5"))
			for n := range 1000 {
				calls(peer.ID(fmt.Sprintf("%032d", n)), from(n))
				if n == 600 {
					a.exchanger.discovered("test", discovery.Event{Kind: discovery.Added, Entry: discovery.Entry{Key: "x", ID: announced, Addrs: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}}})
				}
			}
			if a.viewOf(waits).State != peer.Waiting || a.viewOf(announced).ID == "" {
				t.Errorf("the one that waits is %+v, the announced one %+v", a.viewOf(waits), a.viewOf(announced))
			}
			if n := len(a.Peers()); n > maxStrangers {
				t.Errorf("%d clusters are remembered", n)
			}
		})
	}
}

// One for which there was no room during a flood is found again after it, though its announcement is the same.
func TestAfterAFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.cluster(1, "a", asking, alone)
	tell := func(kind discovery.Kind, n int) peer.ID {
		id := peer.ID(fmt.Sprintf("%032d", n))
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 77, byte(n >> 8), byte(n)}), 7442)
		a.exchanger.discovered("flood", discovery.Event{Kind: kind, Entry: discovery.Entry{Key: string(id), ID: id, Addrs: []netip.AddrPort{at}}})
		return id
	}
	first := tell(discovery.Added, 0)
	a.await("that it is tried", func() bool { return a.viewOf(first).Reason != "" })
	for n := 1; n <= 400; n++ {
		tell(discovery.Added, n)
	}
	if v := a.viewOf(first); v.ID != "" {
		t.Fatalf("there was room for %+v", v)
	}
	for n := 1; n <= 400; n++ {
		tell(discovery.Removed, n)
	}
	a.await("the first one", func() bool { return a.viewOf(first).Reason != "" })
	if len(a.members.missed) != 0 || len(a.Peers()) != 1 {
		t.Errorf("%d are missed, %d known", len(a.members.missed), len(a.Peers()))
	}
}
