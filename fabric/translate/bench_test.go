package translate

import (
	"fmt"
	"net/netip"
	"testing"
)

func benchTable(tb testing.TB, peers int) *Table {
	var rules []Rule
	for i := range peers {
		rules = append(rules, Rule{Peer: fmt.Sprint(i), LocalCIDR: prefix("10.42.0.0/16"), LocalMappedCIDR: prefix("10.201.0.0/16"),
			PeerMappedCIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(i), 0, 0}), 16)})
	}
	table, err := Compile(rules, testMTU)
	if err != nil {
		tb.Fatal(err)
	}
	return table
}

func samples() map[string]packet {
	ours, theirs := ip("10.42.0.5"), ip("172.0.0.7")
	quoted := packet{src: theirs, dst: ours, proto: udp, payload: make([]byte, 64)}
	return map[string]packet{
		"tcp":   {src: ours, dst: theirs, proto: tcp, payload: make([]byte, 1360)},
		"udp":   {src: ours, dst: theirs, proto: udp, payload: make([]byte, 64)},
		"error": {src: ours, dst: theirs, proto: icmp, icmpType: unreachable, quote: &quoted, quoteSize: 72},
	}
}

func BenchmarkOut(b *testing.B) {
	for _, peers := range []int{1, 200} {
		table := benchTable(b, peers)
		for name, p := range samples() {
			b.Run(fmt.Sprintf("%s/%d", name, peers), func(b *testing.B) {
				pkt := p.build()
				sent := append([]byte(nil), pkt[:60]...)
				b.ReportAllocs()
				for b.Loop() {
					copy(pkt, sent)
					if !table.Out(pkt) {
						b.Fatal("dropped")
					}
				}
			})
		}
	}
}

func TestNoAllocations(t *testing.T) {
	table := benchTable(t, 20)
	for name, p := range samples() {
		sent := p.build()
		pkt := make([]byte, len(sent))
		if n := testing.AllocsPerRun(100, func() { copy(pkt, sent); table.Out(pkt) }); n != 0 {
			t.Errorf("%s: %v allocations per packet, want 0", name, n)
		}
	}
}
