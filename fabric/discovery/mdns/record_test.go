package mdns

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"rivulet/fabric/discovery"
	"rivulet/fabric/netmon"
)

// Whoever announces addresses that are not on the link has us call services of the site:
// none of them is told, but for the one that it speaks from.
func TestAddressesOfElsewhereAreNotTold(t *testing.T) {
	lan := netmon.Interface{Index: 2, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}
	from := netip.MustParseAddr("192.0.2.66")
	addrs := func(texts ...string) (out []netip.Addr) {
		for _, s := range texts {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	s := sighting{id: "x", port: 7442, txt: map[string]string{"name": "ev\x1b[31mil", "k\u202e": "v\u009b"},
		addrs: addrs("10.0.0.5", "127.0.0.1", "169.254.169.254", "8.8.8.8", "192.0.2.1", "192.0.2.7", "fe80::7", "2001:db8::1")}
	e := entry(s, lan, from)
	if want := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.7:7442")}; !slices.Equal(e.Addrs, want) {
		t.Errorf("%v, want %v", e.Addrs, want)
	}
	if strings.ContainsAny(e.Name, "\x1b") || e.TXT["k"] != "v" {
		t.Errorf("%q %q", e.Name, e.TXT)
	}
	s.addrs = addrs("10.0.0.5")
	if e := entry(s, lan, from); len(e.Addrs) != 1 || e.Addrs[0].Addr() != from {
		t.Errorf("of elsewhere alone: %v, want where it speaks from", e.Addrs)
	}
	elsewhere := netip.MustParseAddr("10.9.0.1") // two networks on one cable
	s.addrs = addrs("10.9.0.1", "10.9.0.2")
	if e := entry(s, lan, elsewhere); len(e.Addrs) != 1 || e.Addrs[0].Addr() != elsewhere {
		t.Errorf("from another network: %v", e.Addrs)
	}
}

// No port that belongs to a service is taken from an announcement.
func TestPortsOfServicesAreNotTold(t *testing.T) {
	id := strings.Repeat("a", 32)
	for port, want := range map[uint16]uint16{22: 0, 443: 0, 1023: 0, 7442: 7442} {
		m := &dns.Msg{}
		m.Answer = []dns.RR{&dns.SRV{Hdr: dns.RR_Header{Name: id + "." + serviceName, Rrtype: dns.TypeSRV, Ttl: 120}, Port: port, Target: id + "." + domain}}
		got := sightings(m)
		if len(got) != 1 || got[0].port != want {
			t.Errorf("port %d: %+v", port, got)
		}
	}
}

// However many addresses of the link somebody announces in the name of a device, a few count, among them the one that sends.
func TestAddressesOfAnEntryAreBounded(t *testing.T) {
	lan := netmon.Interface{Index: 2, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}}
	s := sighting{id: "x", port: 7442, txt: map[string]string{}}
	for n := range 200 {
		s.addrs = append(s.addrs, netip.AddrFrom4([4]byte{192, 0, 2, byte(n + 2)}))
	}
	from := netip.MustParseAddr("2001:db8::66") // the last by rank
	s.addrs = append(s.addrs, from)
	e := entry(s, lan, from)
	if len(e.Addrs) != discovery.MaxAddrs || !slices.Contains(e.Addrs, netip.AddrPortFrom(from, s.port)) {
		t.Errorf("%v, want %d with %v", e.Addrs, discovery.MaxAddrs, from)
	}
}
