package translate

import (
	"bytes"
	"testing"
)

// FuzzTranslate looks for packets that crash, or that pass with a foreign address.
func FuzzTranslate(f *testing.F) {
	table, err := Compile([]Rule{{Peer: "b", LocalCIDR: prefix("10.42.0.0/16"), LocalMappedCIDR: prefix("10.201.0.0/16"), PeerMappedCIDR: prefix("10.200.0.0/16")}}, testMTU)
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

// FuzzBothEnds sends any packet from a to b, both of which have the same pod CIDR:
// what arrives has right checksums if what was sent had, and it shows addresses
// that b knows.
func FuzzBothEnds(f *testing.F) {
	local := prefix("10.42.0.0/16")
	aSeesB, bSeesA := prefix("10.200.0.0/16"), prefix("172.20.0.0/16")
	a, err := Compile([]Rule{{Peer: "b", LocalCIDR: local, LocalMappedCIDR: bSeesA, PeerMappedCIDR: aSeesB}}, testMTU)
	if err != nil {
		f.Fatal(err)
	}
	b, err := Compile([]Rule{{Peer: "a", LocalCIDR: local, LocalMappedCIDR: aSeesB, PeerMappedCIDR: bSeesA, MTU: 1300}}, testMTU)
	if err != nil {
		f.Fatal(err)
	}
	for _, p := range seeds() {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, pkt []byte) {
		sent := bytes.Clone(pkt)
		if !a.Out(pkt) {
			return
		}
		if !b.In(pkt) {
			if isICMPError(sent) {
				return // quotes a packet that b never sent
			}
			t.Fatalf("%x left a as %x and did not come into b", sent, pkt)
		}
		total := int(be16(pkt[2:]))
		if got := be32(pkt[srcAt:]); got>>16 != ip("172.20.0.0")>>16 {
			t.Fatalf("%x comes from %x", sent, got)
		}
		if got := be32(pkt[dstAt:]); got>>16 != ip("10.42.0.0")>>16 {
			t.Fatalf("%x arrives at %x", sent, got)
		}
		if rightSums(sent[:total]) && !rightSums(pkt[:total]) {
			t.Fatalf("%x arrives with a wrong checksum: %x", sent, pkt)
		}
		if !bytes.Equal(sent[total:], pkt[total:]) {
			t.Fatal("bytes behind the packet were touched")
		}
	})
}

func isICMPError(pkt []byte) bool { return pkt[9] == icmp && isError(pkt[int(pkt[0]&15)*4:]) }

// rightSums computes the checksums of a packet that is not cut into fragments anew;
// the transport's of fragments cannot be told from one of them.
func rightSums(pkt []byte) bool {
	size := int(pkt[0]&15) * 4
	if sum16(pkt[:size], 0) != 0 {
		return false
	}
	if be16(pkt[6:])&0x3fff != 0 {
		return true
	}
	l4 := pkt[size:]
	pseudo := packet{src: be32(pkt[srcAt:]), dst: be32(pkt[dstAt:]), proto: pkt[9]}.pseudo(len(l4))
	switch {
	case pkt[9] == tcp:
		return sum16(l4, pseudo) == 0
	case pkt[9] == udp && be16(l4[6:]) == 0:
		return true
	case pkt[9] == udp && int(be16(l4[4:])) == len(l4):
		return sum16(l4, pseudo) == 0
	case pkt[9] == icmp:
		return sum16(l4, 0) == 0
	}
	return true
}

// seeds is a packet of each kind that matters: where a search begins, and what
// make test runs.
func seeds() (out [][]byte) {
	ours, theirs := ip("10.42.0.5"), ip("10.200.0.7")
	quoted := packet{src: theirs, dst: ours, proto: udp, payload: []byte("query")}
	big := packet{src: ours, dst: theirs, proto: udp, payload: make([]byte, 4000)}.build()
	for _, p := range []packet{
		{src: ours, dst: theirs, proto: tcp, syn: true, tcpOpts: []byte{2, 4, 5, 180}},
		{src: ours, dst: theirs, proto: tcp, syn: true, tcpOpts: []byte{1, 2, 4, 5, 180, 0, 0, 0}},
		{src: ours, dst: theirs, proto: tcp, payload: make([]byte, 1380)},
		{src: ours, dst: theirs, proto: udp, payload: []byte("x")},
		{src: ours, dst: theirs, proto: udp, noSum: true, payload: []byte("x")},
		{src: ours, dst: theirs, proto: udp, options: []byte{7, 7, 4, 0, 0, 0, 0, 0}},
		{src: ours, dst: theirs, proto: udp, options: []byte{148, 4, 0, 0}}, // router alert
		{src: ours, dst: theirs, proto: udp, options: []byte{131, 7, 4, 1, 2, 3, 4, 0}},
		{src: ours, dst: theirs, proto: icmp, icmpType: 8, payload: make([]byte, 56)},
		{src: ours, dst: theirs, proto: icmp, icmpType: unreachable, quote: &quoted, quoteSize: 28},
		{src: ours, dst: theirs, proto: icmp, icmpType: timeExceeded, quote: &quoted, quoteSize: 99},
		{src: ours, dst: theirs, proto: 132, payload: make([]byte, 40)},
	} {
		out = append(out, p.build())
	}
	return append(out, fragments(big, 1376)...)
}
