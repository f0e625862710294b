package translate

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const testMTU = 1420

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func ip(s string) uint32 {
	a := netip.MustParseAddr(s).As4()
	return be32(a[:])
}

// plan is one side's view of one peer, with random prefixes.
type plan struct {
	table             *Table
	local, as, remote uint32
	mask, remoteMask  uint32
}

func (p plan) ours(t *rapid.T, net uint32) uint32 {
	return net | rapid.Uint32().Draw(t, "our host")&^p.mask
}
func (p plan) theirs(t *rapid.T) uint32 {
	return p.remote | rapid.Uint32().Draw(t, "their host")&^p.remoteMask
}

func drawPlan(t *rapid.T) plan {
	in := func(base string, bits int) netip.Prefix {
		host := rapid.Uint32().Draw(t, "net of "+base)
		b := prefix(base)
		n, m := numbers(b)
		n |= host &^ m
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), bits).Masked()
	}
	bits := rapid.IntRange(9, 30).Draw(t, "our size")
	rbits := rapid.IntRange(9, 30).Draw(t, "their size")
	local, remote := in("10.0.0.0/9", bits), in("10.128.0.0/9", rbits)
	as := in("172.0.0.0/8", bits)
	if rapid.IntRange(0, 4).Draw(t, "identity") == 0 {
		as = local
	}
	rules := []Rule{{Peer: "p", LocalCIDR: local, LocalMappedCIDR: as, PeerMappedCIDR: remote}}
	for i := range rapid.IntRange(0, 5).Draw(t, "more peers") { // as many again, elsewhere
		rules = append(rules, Rule{Peer: "q", LocalCIDR: local, LocalMappedCIDR: as, PeerMappedCIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(i), 0, 0}), 16)})
	}
	table, err := Compile(rules, testMTU)
	if err != nil {
		t.Fatal(err)
	}
	p := plan{table: table}
	p.local, p.mask = numbers(local)
	p.as, _ = numbers(as)
	p.remote, p.remoteMask = numbers(remote)
	return p
}

func check(t *rapid.T, ok bool, got, want []byte) {
	t.Helper()
	if !ok {
		t.Fatalf("dropped, want\n%x", want)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("got\n%x\nwant\n%x", got, want)
	}
}

// Any packet, whole or in fragments, leaves and arrives as if it had been made
// with the other addresses in the first place.
func TestRewriteEqualsRebuilding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		size := rapid.SampledFrom([]int{24, 48, 65528}).Draw(t, "fragment size")
		host := p.ours(t, 0)

		p1 := drawPacket(t, p.local|host, p.theirs(t))
		want := p1.clamped(testMTU - 40)
		want.src = p.as | host
		compare(t, p1, want, size, p.table.Out)

		p2 := drawPacket(t, p.theirs(t), p.as|host)
		want = p2.clamped(testMTU - 40)
		want.dst = p.local | host
		compare(t, p2, want, size, p.table.In)
	})
}

func compare(t *rapid.T, from, to packet, size int, translate func([]byte) bool) {
	if from.proto == tcp && size < 20+len(from.tcpOpts) {
		size = 48 // options in a second fragment stay as they are
	}
	got, want := fragments(from.build(), size), fragments(to.build(), size)
	for i := range got {
		check(t, translate(got[i]), got[i], want[i])
	}
}

// An ICMP error shows the quoted packet as its sender sent it, however much of it
// is quoted; from an address that the peer cannot know it comes as the first one.
func TestErrorsQuoteWhatWasSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		host, peer := p.ours(t, 0), p.theirs(t)
		kind := rapid.SampledFrom([]byte{unreachable, quench, timeExceeded, badParameter}).Draw(t, "type")
		// A quote that ends between the two bytes of a checksum cannot be mended; routers quote whole words.
		size := 4 * rapid.IntRange(7, 50).Draw(t, "quoted words")
		inside := rapid.Bool().Draw(t, "sent by the pod itself")

		sent := drawPacket(t, peer, p.local|host)
		e := packet{src: p.local | host, dst: peer, proto: icmp, icmpType: kind, quote: &sent, quoteSize: size}
		wantSent := sent
		wantSent.dst = p.as | host
		want := e
		want.src, want.quote = p.as|host, &wantSent
		if !inside {
			e.src = ip("192.168.1.1")
			want.src = p.as | 1&^p.mask
		}
		got := e.build()
		check(t, p.table.Out(got), got, want.build())

		sent = drawPacket(t, p.as|host, peer)
		e = packet{src: peer, dst: p.as | host, proto: icmp, icmpType: kind, quote: &sent, quoteSize: size}
		wantSent = sent
		wantSent.src = p.local | host
		want = e
		want.dst, want.quote = p.local|host, &wantSent
		got = e.build()
		check(t, p.table.In(got), got, want.build())
	})
}

// Nothing that is not between the published prefixes passes, whatever it is.
func TestNothingElsePasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		src, dst := rapid.Uint32().Draw(t, "src"), rapid.Uint32().Draw(t, "dst")
		switch rapid.IntRange(0, 2).Draw(t, "near miss") {
		case 1:
			dst = p.theirs(t)
		case 2:
			src = p.theirs(t)
		}
		pkt := drawPacket(t, src, dst).build()
		if p.table.Out(bytes.Clone(pkt)) && (src&p.mask != p.local || p.table.find(dst) == nil) {
			t.Fatalf("%x left", pkt)
		}
		if p.table.In(bytes.Clone(pkt)) && (dst&p.mask != p.as || p.table.find(src) == nil) {
			t.Fatalf("%x came in", pkt)
		}
	})
}

func TestRefused(t *testing.T) {
	table, err := Compile([]Rule{{Peer: "b", LocalCIDR: prefix("10.42.0.0/16"), LocalMappedCIDR: prefix("10.201.0.0/16"), PeerMappedCIDR: prefix("10.200.0.0/16")}}, testMTU)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs, as := ip("10.42.0.5"), ip("10.200.0.7"), ip("10.201.0.5")
	base := packet{src: ours, dst: theirs, proto: udp, payload: make([]byte, 40), mssAt: -1}
	alter := func(f func(*packet)) []byte { p := base; f(&p); return p.build() }
	cut := func(b []byte, n int) []byte { return b[:n] }
	tcpPacket := packet{src: ours, dst: theirs, proto: tcp, payload: make([]byte, 40)}.build()
	foreign := packet{src: theirs, dst: ip("10.43.0.1"), proto: udp}

	out := map[string][]byte{
		"empty":                    {},
		"IPv6":                     append([]byte{0x60}, make([]byte, 60)...),
		"short header":             cut(base.build(), 19),
		"shorter than it says":     cut(base.build(), 60),
		"loose source route":       alter(func(p *packet) { p.options = []byte{131, 7, 4, 1, 2, 3, 4, 0} }),
		"strict source route":      alter(func(p *packet) { p.options = []byte{1, 137, 7, 4, 1, 2, 3, 4} }),
		"unreadable options":       alter(func(p *packet) { p.options = []byte{7, 200, 4, 1} }),
		"multicast":                alter(func(p *packet) { p.dst = ip("224.0.0.251") }),
		"foreign source":           alter(func(p *packet) { p.src = ip("192.168.1.1") }),
		"tiny first TCP fragment":  fragments(tcpPacket, 16)[0],
		"second over TCP's header": fragments(tcpPacket, 16)[1],
		"redirect":                 alter(func(p *packet) { p.proto, p.icmpType = icmp, redirect }),
		"foreign router's echo":    alter(func(p *packet) { p.proto, p.icmpType, p.src = icmp, 8, ip("192.168.1.1") }),
		"error about foreign packet": packet{src: ours, dst: theirs, proto: icmp, icmpType: unreachable,
			quote: &foreign, quoteSize: 28}.build(),
	}
	for name, pkt := range out {
		if table.Out(pkt) {
			t.Errorf("%s left", name)
		}
	}
	for name, pkt := range map[string][]byte{
		"to our real address": packet{src: theirs, dst: ours, proto: udp}.build(),
		"from a stranger":     packet{src: ip("10.202.0.1"), dst: as, proto: udp}.build(),
		"redirect":            packet{src: theirs, dst: as, proto: icmp, icmpType: redirect, payload: make([]byte, 28)}.build(),
	} {
		if table.In(pkt) {
			t.Errorf("%s came in", name)
		}
	}
	var none Translator
	if pkt := base.build(); none.Table().Out(pkt) || none.Table().In(pkt) {
		t.Error("a translator without table let a packet pass")
	}
}

func TestCompileRefuses(t *testing.T) {
	good := Rule{Peer: "b", LocalCIDR: prefix("10.42.0.0/16"), LocalMappedCIDR: prefix("10.201.0.0/16"), PeerMappedCIDR: prefix("10.200.0.0/16")}
	for want, rules := range map[string][]Rule{
		"sizes differ":       {{Peer: "b", LocalCIDR: good.LocalCIDR, LocalMappedCIDR: prefix("10.201.0.0/17"), PeerMappedCIDR: good.PeerMappedCIDR}},
		"overlaps our own":   {{Peer: "b", LocalCIDR: good.LocalCIDR, LocalMappedCIDR: good.LocalMappedCIDR, PeerMappedCIDR: prefix("10.42.128.0/17")}},
		"not an IPv4 prefix": {{Peer: "b", LocalCIDR: good.LocalCIDR, LocalMappedCIDR: good.LocalMappedCIDR, PeerMappedCIDR: prefix("fd00::/16")}},
		"of peer":            {good, {Peer: "c", LocalCIDR: good.LocalCIDR, LocalMappedCIDR: good.LocalMappedCIDR, PeerMappedCIDR: prefix("10.200.7.0/24")}},
	} {
		if _, err := Compile(rules, testMTU); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got error %v, want one with %q", rules, err, want)
		}
	}
	if _, err := Compile([]Rule{good}, 100); err == nil {
		t.Error("an MTU of 100 was accepted")
	}
}

// Where the peer sees our prefix as it is, not a byte changes, whatever the packet;
// only an MSS that is too large for the path is lowered.
func TestIdentityTouchesNothing(t *testing.T) {
	local, remote := prefix("10.42.0.0/16"), prefix("10.200.0.0/16")
	table, err := Compile([]Rule{{Peer: "b", LocalCIDR: local, LocalMappedCIDR: local, PeerMappedCIDR: remote}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		ours, theirs := ip("10.42.0.0")|rapid.Uint32().Draw(t, "our host")>>16, ip("10.200.0.0")|rapid.Uint32().Draw(t, "their host")>>16
		for _, p := range []packet{drawPacket(t, ours, theirs), drawPacket(t, theirs, ours)} {
			pkt := p.build()
			copy(pkt[10:12], bytesOf(t, 2, "IP checksum, right or wrong")) // both forms of zero too
			sent := bytes.Clone(pkt)
			if p.src == ours && !table.Out(pkt) || p.src == theirs && !table.In(pkt) {
				t.Fatalf("%x was dropped", sent)
			}
			if !bytes.Equal(sent, pkt) {
				t.Fatalf("%x became %x", sent, pkt)
			}
		}
	})
}

// The MSS follows the path of each peer, in both directions, and never the larger
// of tunnel and path.
func TestMSSOfEachPath(t *testing.T) {
	local := prefix("10.42.0.0/16")
	table, err := Compile([]Rule{
		{Peer: "near", LocalCIDR: local, LocalMappedCIDR: local, PeerMappedCIDR: prefix("10.200.0.0/16")},
		{Peer: "far", LocalCIDR: local, LocalMappedCIDR: local, PeerMappedCIDR: prefix("10.201.0.0/16"), MTU: 1216},
		{Peer: "wide", LocalCIDR: local, LocalMappedCIDR: local, PeerMappedCIDR: prefix("10.202.0.0/16"), MTU: 8000},
	}, testMTU)
	if err != nil {
		t.Fatal(err)
	}
	for peer, want := range map[string]uint16{"10.200.0.7": testMTU - 40, "10.201.0.7": 1216 - 40, "10.202.0.7": testMTU - 40} {
		syn := packet{src: ip("10.42.0.5"), dst: ip(peer), proto: tcp, syn: true, tcpOpts: []byte{2, 4, 5, 180}, mssAt: 2}
		back := syn
		back.src, back.dst = syn.dst, syn.src
		for _, c := range []struct {
			p         packet
			translate func([]byte) bool
		}{{syn, table.Out}, {back, table.In}} {
			pkt := c.p.build()
			if !c.translate(pkt) || !bytes.Equal(pkt, c.p.clamped(want).build()) {
				t.Errorf("%s: the SYN is %x", peer, pkt)
			}
		}
	}
	if _, err := Compile([]Rule{{Peer: "b", LocalCIDR: local, LocalMappedCIDR: local, PeerMappedCIDR: prefix("10.200.0.0/16"), MTU: 100}}, testMTU); err == nil {
		t.Error("a path MTU of 100 was accepted")
	}
}

// Fragments: which pass. Those behind the first have no ports, and are told by
// their addresses alone.
func TestFragments(t *testing.T) {
	table, err := Compile([]Rule{{Peer: "b", LocalCIDR: prefix("10.42.0.0/16"), LocalMappedCIDR: prefix("10.201.0.0/16"), PeerMappedCIDR: prefix("10.200.0.0/16")}}, testMTU)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := ip("10.42.0.5"), ip("10.200.0.7")
	of := func(p packet, size int) [][]byte {
		p.src, p.dst, p.mssAt = ours, theirs, -1
		return fragments(p.build(), size)
	}
	datagram, segment := packet{proto: udp, payload: make([]byte, 200)}, packet{proto: tcp, payload: make([]byte, 200)}
	quoted := packet{src: theirs, dst: ours, proto: udp, payload: make([]byte, 200)}
	report := packet{proto: icmp, icmpType: unreachable, quote: &quoted, quoteSize: 200}
	for _, c := range []struct {
		what string
		pkt  []byte
		want bool
	}{
		{"first of UDP, ports and checksum alone", of(datagram, 8)[0], true},
		{"second of UDP", of(datagram, 8)[1], true},
		{"last of UDP", of(datagram, 64)[3], true},
		{"first of TCP with its whole header", of(segment, 24)[0], true},
		{"second of TCP behind the header", of(segment, 24)[1], true},
		{"first of TCP without flags", of(segment, 8)[0], false},
		{"second of TCP inside the header", of(segment, 16)[1], false},
		{"first of an ICMP error with the quoted header", of(report, 48)[0], true},
		{"second of an ICMP error", of(report, 48)[1], true},
		{"first of an ICMP error that hides the quoted header", of(report, 16)[0], false},
	} {
		if got := table.Out(c.pkt); got != c.want {
			t.Errorf("%s: passes %v, want %v", c.what, got, c.want)
		}
	}
}
