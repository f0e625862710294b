package translate

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// raw is an IPv4 packet with a right header checksum around any bytes.
func raw(src, dst uint32, proto byte, offset int, l4 []byte) []byte {
	h := make([]byte, minHeader)
	h[0], h[8], h[9] = 4<<4|minHeader/4, 64, proto
	binary.BigEndian.PutUint16(h[6:], uint16(offset/8))
	binary.BigEndian.PutUint32(h[srcAt:], src)
	binary.BigEndian.PutUint32(h[dstAt:], dst)
	return finish(h, l4)
}

// The smallest packet of each protocol passes, and not what is one byte shorter, whose checksum would lie behind its end.
func TestSmallestPackets(t *testing.T) {
	table, err := Compile([]Rule{{Peer: "b", LocalCIDR: prefix("10.42.0.0/16"), LocalMappedCIDR: prefix("10.201.0.0/16"), PeerMappedCIDR: prefix("10.200.0.0/16")}}, testMTU)
	if err != nil {
		t.Fatal(err)
	}
	if err := table.WithNodes([]Node{{Prefix: prefix("10.42.7.0/24")}}, testMTU); err != nil {
		t.Fatal(err)
	}
	ours, theirs, as, node := ip("10.42.0.5"), ip("10.200.0.7"), ip("10.201.0.5"), ip("10.42.7.9")
	ways := map[string]func(proto byte, offset, size int) bool{
		"out":         func(p byte, o, n int) bool { return table.Out(raw(ours, theirs, p, o, make([]byte, n))) },
		"in":          func(p byte, o, n int) bool { return table.In(raw(theirs, as, p, o, make([]byte, n))) },
		"to a node":   func(p byte, o, n int) bool { return table.Out(raw(ours, node, p, o, make([]byte, n))) },
		"from a node": func(p byte, o, n int) bool { return table.In(raw(node, ours, p, o, make([]byte, n))) },
	}
	for _, c := range []struct {
		proto        byte
		offset, size int
		passes, node bool
	}{
		{tcp, 0, 20, true, true}, {tcp, 0, 19, false, false}, {tcp, 16, 40, false, false}, {tcp, 24, 1, true, true},
		{udp, 0, 8, true, true}, {udp, 0, 7, false, true}, {udp, 8, 1, true, true},
		{dccp, 0, 12, true, true}, {dccp, 0, 11, false, true}, {icmp, 0, 4, true, true}, {icmp, 0, 3, false, true}, {200, 0, 0, true, true},
	} {
		for way, passes := range ways {
			want := c.passes
			if way == "to a node" || way == "from a node" { // of those nothing is changed
				want = c.node
			}
			if got := passes(c.proto, c.offset, c.size); got != want {
				t.Errorf("%s, protocol %d at %d with %d bytes: passes %v, want %v", way, c.proto, c.offset, c.size, got, want)
			}
		}
	}
	whole := raw(theirs, as, udp, 0, make([]byte, 40))
	for what, pkt := range map[string][]byte{
		"cut short":                        whole[:50],
		"a header that is too small":       append([]byte{0x44}, whole[1:]...),
		"a header that is larger than all": append([]byte{0x4f}, whole[1:40]...),
		"less in all than its header":      append([]byte{0x4f}, raw(theirs, as, udp, 0, make([]byte, 39))[1:]...),
	} {
		if table.In(pkt) || table.Out(pkt) {
			t.Errorf("%s passes", what)
		}
	}
	// What passes from an address without a mapping are errors of routers, not what looks like one.
	router := ip("192.168.1.1")
	quote := raw(theirs, ours, 200, 0, nil)
	report := append([]byte{unreachable, 1, 0, 0, 0, 0, 0, 0}, quote...)
	for _, c := range []struct {
		proto  byte
		offset int
		want   bool
	}{{icmp, 0, true}, {icmp, 8, false}, {udp, 0, false}, {udp, 8, false}} {
		if got := table.Out(raw(router, theirs, c.proto, c.offset, bytes.Clone(report))); got != c.want {
			t.Errorf("a router's packet of protocol %d at %d passes: %v", c.proto, c.offset, got)
		}
	}
}

// DCCP's checksum, and that of a TCP header whose quote ends with it, are right after the address has changed.
func TestChecksumsAtTheEnd(t *testing.T) {
	table, err := Compile([]Rule{{Peer: "b", LocalCIDR: prefix("10.42.0.0/16"), LocalMappedCIDR: prefix("10.201.0.0/16"), PeerMappedCIDR: prefix("10.200.0.0/16")}}, testMTU)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs, as := ip("10.42.0.5"), ip("10.200.0.7"), ip("10.201.0.5")
	segment := func(src uint32, proto byte, at int) []byte {
		b := bytes.Repeat([]byte{0x35}, 20)
		p := packet{src: src, dst: theirs, proto: proto}
		binary.BigEndian.PutUint16(b[at:], 0)
		binary.BigEndian.PutUint16(b[at:], sum16(b, p.pseudo(len(b))))
		return raw(src, theirs, proto, 0, b)
	}
	for _, c := range []struct {
		proto     byte
		at, quote int
	}{{dccp, 6, 8}, {tcp, 16, 18}} {
		sent, there := segment(ours, c.proto, c.at), segment(as, c.proto, c.at)
		if pkt := bytes.Clone(sent); !table.Out(pkt) || !bytes.Equal(pkt, there) {
			t.Errorf("protocol %d: %x became %x, want %x", c.proto, sent, pkt, there)
		}
		error := func(dst uint32, quoted []byte) []byte {
			l4 := append([]byte{unreachable, 1, 0, 0, 0, 0, 0, 0}, quoted[:minHeader+c.quote]...)
			binary.BigEndian.PutUint16(l4[2:], sum16(l4, 0))
			return raw(theirs, dst, icmp, 0, l4)
		}
		if pkt, want := error(as, there), error(ours, sent); !table.In(pkt) || !bytes.Equal(pkt, want) {
			t.Errorf("protocol %d: an error about it is %x, want %x", c.proto, pkt, want)
		}
	}
}

// TCP options: the MSS is found behind others, and nothing else is written to, also where they cannot be read.
func TestOptionsOfTCP(t *testing.T) {
	local := prefix("10.42.0.0/16")
	table, err := Compile([]Rule{{Peer: "b", LocalCIDR: local, LocalMappedCIDR: local, PeerMappedCIDR: prefix("10.200.0.0/16")}}, testMTU)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		options string
		mssAt   int
	}{
		{"\x02\x04\xff\xff", 2}, {"\x01\x01\x02\x04\xff\xff\x01\x01", 4}, {"\x04\x02\x02\x04\xff\xff\x01\x01", 4}, {"\x01\x02\x04\xff\xff\x01\x01\x01", 3},
		{"\x09\x04\xff\xff", -1}, {"\x01\x01\x01\x02", -1}, {"\x01\x01\x02\x04", -1}, {"\x03\x00\xff\xff", -1}, {"\x03\x01\xff\xff", -1},
		{"\x02\x03\xff\x00", -1}, {"\x00\x02\x04\xff\xff\x00\x00\x00", -1},
	} {
		for _, payload := range []string{"", "\xff\xff\xff\xff"} {
			p := packet{src: ip("10.42.0.5"), dst: ip("10.200.0.7"), proto: tcp, syn: true, tcpOpts: []byte(c.options), mssAt: c.mssAt, payload: []byte(payload)}
			pkt := p.build()
			if !table.Out(pkt) || !bytes.Equal(pkt, p.clamped(testMTU-40).build()) {
				t.Errorf("%x: became %x", c.options, pkt)
			}
		}
	}
}

// Prefixes of nodes: the longest one counts, and what is no prefix or no MTU is refused.
func TestNodes(t *testing.T) {
	for what, n := range map[string]Node{
		"nothing": {}, "IPv6": {Prefix: prefix("fd00::/64")}, "MTU 575": {Prefix: prefix("10.42.1.0/24"), MTU: 575},
	} {
		if err := new(Table).WithNodes([]Node{n}, testMTU); err == nil {
			t.Errorf("%s was taken", what)
		}
	}
	for mtu, good := range map[int]bool{575: false, 576: true, 65535: true, 65536: false} {
		if _, err := clampTo(mtu, 0); (err == nil) != good {
			t.Errorf("MTU %d: %v", mtu, err)
		}
	}
	var table Table
	if err := table.WithNodes([]Node{{Prefix: prefix("10.42.0.0/16"), MTU: 1000}, {Prefix: prefix("10.42.1.0/24"), MTU: 900}}, testMTU); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]uint16{"10.42.0.9": 960, "10.42.1.9": 860} {
		syn := packet{src: ip("10.42.8.5"), dst: ip(at), proto: tcp, syn: true, tcpOpts: []byte{2, 4, 5, 180}, mssAt: 2}
		if pkt := syn.build(); !table.Out(pkt) || !bytes.Equal(pkt, syn.clamped(want).build()) {
			t.Errorf("%s: the SYN is %x", at, pkt)
		}
	}
}
