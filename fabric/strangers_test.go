package fabric

import (
	"fmt"
	"net/netip"
	"testing"

	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/static"
	"rivulet/fabric/peer"
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
