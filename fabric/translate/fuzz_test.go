package translate

import (
	"bytes"
	"testing"
)

// FuzzTranslate looks for packets that crash, or that pass with a foreign address.
func FuzzTranslate(f *testing.F) {
	table, err := Compile([]Rule{{Peer: "b", Local: prefix("10.42.0.0/16"), As: prefix("10.201.0.0/16"), Remote: prefix("10.200.0.0/16")}}, testMTU)
	if err != nil {
		f.Fatal(err)
	}
	ours, theirs := ip("10.42.0.5"), ip("10.200.0.7")
	quoted := packet{src: theirs, dst: ours, proto: udp, payload: []byte("query")}
	for _, p := range []packet{
		{src: ours, dst: theirs, proto: tcp, syn: true, tcpOpts: []byte{2, 4, 5, 180}},
		{src: theirs, dst: ip("10.201.0.5"), proto: udp, options: []byte{7, 7, 4, 0, 0, 0, 0, 0}},
		{src: ours, dst: theirs, proto: icmp, icmpType: unreachable, quote: &quoted, quoteSize: 99},
	} {
		f.Add(p.build())
	}
	f.Fuzz(func(t *testing.T, pkt []byte) {
		out := bytes.Clone(pkt)
		if table.Out(out) && (be32(out[srcAt:])>>16 != ip("10.201.0.0")>>16 || be32(out[dstAt:])>>16 != ip("10.200.0.0")>>16) {
			t.Fatalf("%x left as %x", pkt, out)
		}
		in := bytes.Clone(pkt)
		if table.In(in) && (be32(in[srcAt:])>>16 != ip("10.200.0.0")>>16 || be32(in[dstAt:])>>16 != ip("10.42.0.0")>>16) {
			t.Fatalf("%x came in as %x", pkt, in)
		}
	})
}
