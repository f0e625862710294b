package mdns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
)

// floodID is the nth ID of devices that nobody has seen.
func floodID(n int) peer.ID {
	return peer.ID(strings.Map(func(r rune) rune { return r - '0' + 'a' }, fmt.Sprintf("%032d", n)))
}

// A real neighbour is seen however many devices somebody invents, from one address
// or from many, and a known one is never pushed out.
func TestFloodOfStrangers(t *testing.T) {
	lan := netmon.Interface{Index: 1, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}}
	for name, from := range map[string]func(n int) netip.Addr{
		"from one address":    func(int) netip.Addr { return netip.MustParseAddr("10.0.0.66") },
		"from many addresses": func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}) },
	} {
		t.Run(name, func(t *testing.T) {
			known, neighbour := floodID(1_000_001), floodID(1_000_002)
			told := map[string]bool{}
			seen := false
			c := &cache{timing: DefaultTiming, entries: map[key]*cached{}, known: func(id peer.ID) bool { return id == known }, report: func(e discovery.Event) {
				switch {
				case e.Kind == discovery.Added && told[e.Entry.Key], e.Kind != discovery.Added && !told[e.Entry.Key]:
					t.Fatalf("%v does not follow from what was told before", e)
				case e.Kind == discovery.Removed:
					if delete(told, e.Entry.Key); e.Entry.ID == known {
						t.Fatal("the known device was pushed out")
					}
				default:
					told[e.Entry.Key] = true
					seen = seen || e.Entry.ID == neighbour
				}
			}}
			now := time.Now()
			full := func(id peer.ID) sighting { return sighting{id: id, port: 7442, txt: map[string]string{}} }
			c.see(now, full(known), lan, netip.MustParseAddr("10.0.0.2"))
			for n := range 5000 {
				c.see(now, full(floodID(n)), lan, from(n))
			}
			c.see(now, full(neighbour), lan, netip.MustParseAddr("10.0.0.3"))
			if !seen || !told[string(known)] || len(c.entries) > maxEntries {
				t.Errorf("neighbour seen: %v, known there: %v, %d entries", seen, told[string(known)], len(c.entries))
			}
		})
	}
}

// Whatever is heard, few questions are asked at a time; of known devices all.
func TestLookupsAreBounded(t *testing.T) {
	now := time.Now()
	l := lookups{window: time.Second, at: map[peer.ID]time.Time{}}
	asked := 0
	for n := range 1000 {
		if l.may(now, floodID(n), false) {
			asked++
		}
	}
	if asked != maxLookups || len(l.at) != maxLookups {
		t.Errorf("%d questions, %d remembered", asked, len(l.at))
	}
	if !l.may(now, floodID(2000), true) || l.may(now, floodID(2000), true) {
		t.Error("a known device is asked for once, at once")
	}
	if !l.may(now.Add(2*time.Second), floodID(0), false) {
		t.Error("a device is not asked for again later")
	}
}
