package gso

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

// sum16 is the checksum of RFC 1071, word by word: the reference.
func sum16(b []byte, sum uint32) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// valid reports whether both checksums of a TCP or UDP packet, and its lengths, are right.
func valid(pkt []byte) bool {
	l4 := pkt[ipHeadOf(pkt):]
	pseudo := uint32(pkt[protocolAt]) + uint32(len(l4))
	for i := sourceAt; i < ipHead; i += 2 {
		pseudo += uint32(pkt[i])<<8 | uint32(pkt[i+1])
	}
	return sum16(pkt[:ipHeadOf(pkt)], 0) == 0 && sum16(l4, pseudo) == 0 && int(binary.BigEndian.Uint16(pkt[totalAt:])) == len(pkt) &&
		(pkt[protocolAt] != protocolUDP || int(binary.BigEndian.Uint16(l4[udpLengthAt:])) == len(l4))
}

func drawn(t *rapid.T, protocol byte, ipWords int) (pkt []byte, head int) {
	ip := 4 * ipWords
	head = ip + udpHead
	if protocol == protocolTCP {
		head = ip + tcpHead + 4*rapid.IntRange(0, 10).Draw(t, "options")
	}
	size := rapid.OneOf(rapid.IntRange(0, 3000), rapid.IntRange(0, 1<<16-1-head)).Draw(t, "data")
	pkt = make([]byte, head+size)
	seed := rapid.Uint64().Draw(t, "contents")
	for i := range pkt {
		seed = seed*6364136223846793005 + 1442695040888963407
		pkt[i] = byte(seed >> 56)
	}
	pkt[0], pkt[protocolAt], pkt[flagsAt], pkt[flagsAt+1] = 4<<4|byte(ipWords), protocol, dontFragment, 0
	binary.BigEndian.PutUint16(pkt[totalAt:], uint16(len(pkt)))
	if protocol == protocolTCP {
		pkt[ip+sizeAt] = byte((head - ip) / 4 << 4)
		pkt[ip+tcpFlagsAt] = rapid.Byte().Draw(t, "flags")
	}
	return pkt, head
}

func room(n int) ([][]byte, []int) {
	bufs := make([][]byte, n)
	for i := range bufs {
		bufs[i] = make([]byte, 1<<16-1)
	}
	return bufs, make([]int, n)
}

const offset = 16

// The parts of a packet have its data, its headers and valid checksums, in place or not.
func TestPartsAreThePacket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		protocol := rapid.SampledFrom([]byte{protocolTCP, protocolUDP}).Draw(t, "protocol")
		pkt, head := drawn(t, protocol, rapid.SampledFrom([]int{5, 5, 6, 15}).Draw(t, "words of the IP header"))
		segment := rapid.IntRange(MinSegment, 9000).Draw(t, "segment")
		bufs, sizes := room(Parts(pkt, segment))
		was := bytes.Clone(pkt)
		if rapid.Bool().Draw(t, "in place") && offset+len(pkt) <= len(bufs[0]) {
			pkt = bufs[0][offset : offset+copy(bufs[0][offset:], pkt)]
		}
		n, err := Split(pkt, segment, bufs, sizes, offset)
		if err != nil || n != len(bufs) {
			t.Fatalf("%d parts: %v", n, err)
		}
		var data []byte
		for i := range n {
			part := bufs[i][offset : offset+sizes[i]]
			checkPart(t, part, was, head, i, i*segment, i == n-1)
			if !valid(part) {
				t.Fatalf("part %d: checksums or lengths", i)
			}
			if len(part)-head > segment || i < n-1 && len(part)-head != segment {
				t.Fatalf("part %d has %d bytes", i, len(part)-head)
			}
			data = append(data, part[head:]...)
		}
		if !bytes.Equal(data, was[head:]) {
			t.Fatal("the data is another")
		}
	})
}

// checkPart compares the headers of a part with those of the packet.
func checkPart(t *rapid.T, part, of []byte, head, i, at int, last bool) {
	want := bytes.Clone(of[:head])
	copy(want[totalAt:], part[totalAt:totalAt+2])
	copy(want[ipSumAt:], part[ipSumAt:ipSumAt+2])
	binary.BigEndian.PutUint16(want[idAt:], binary.BigEndian.Uint16(of[idAt:])+uint16(i))
	ip := ipHeadOf(of)
	l4 := want[ip:]
	if of[protocolAt] == protocolUDP {
		copy(l4[udpLengthAt:], part[ip+udpLengthAt:ip+udpHead])
	} else {
		copy(l4[tcpSumAt:], part[ip+tcpSumAt:ip+tcpSumAt+2])
		binary.BigEndian.PutUint32(l4[sequenceAt:], binary.BigEndian.Uint32(of[ip+sequenceAt:])+uint32(at))
		if i > 0 {
			l4[tcpFlagsAt] &^= congested
		}
		if !last {
			l4[tcpFlagsAt] &^= finish | push
		}
	}
	if !bytes.Equal(part[:head], want) {
		t.Fatalf("part %d: headers %x, want %x", i, part[:head], want)
	}
}

// A packet that passes in one piece becomes at the other end what it would have become here; all others are refused by
// both ends.
func TestOnePieceIsTheSamePackets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pkt, head := drawn(t, protocolTCP, 5)
		pkt[flagsAt] = rapid.SampledFrom([]byte{dontFragment, dontFragment, dontFragment, 0, 0x20}).Draw(t, "fragment")
		pkt[ipHead+tcpFlagsAt] &= rapid.SampledFrom([]byte{0xff, finish | push | 0x10 | 0x40}).Draw(t, "mask")
		segment := rapid.IntRange(MinSegment-10, 9000).Draw(t, "segment")
		may := pkt[flagsAt] == dontFragment && pkt[ipHead+tcpFlagsAt]&(synchronize|reset|urgent|congested) == 0 && segment >= MinSegment
		bufs, sizes := room(4)
		n := Divide(bytes.Clone(pkt), segment, bufs, sizes, offset)
		if (n > 0) != may {
			t.Fatalf("%d pieces, and it may pass: %v", n, may)
		}
		if n == 0 {
			return
		}
		want, wantSizes := room(Parts(pkt, segment))
		if _, err := Split(pkt, segment, want, wantSizes, offset); err != nil {
			t.Fatal(err)
		}
		at := 0
		for i := range n {
			piece := bufs[i][offset : offset+sizes[i]]
			if len(piece) > Largest {
				t.Fatalf("a piece of %d bytes", len(piece))
			}
			parts, partSizes := [][]byte{bufs[i]}, []int{sizes[i]}
			if Marked(piece) {
				h, s, ok := Open(piece)
				if !ok || h != head || s != segment || Marked(piece) {
					t.Fatalf("opened: head %d, segments of %d, %v", h, s, ok)
				}
				parts, partSizes = room(Parts(piece, s))
				if _, err := Split(piece, s, parts, partSizes, offset); err != nil {
					t.Fatal(err)
				}
			}
			for j := range parts {
				got := parts[j][offset : offset+partSizes[j]]
				if !valid(got) {
					t.Fatalf("part %d: checksums or lengths", at)
				}
				if !bytes.Equal(unnumbered(got), unnumbered(want[at][offset:offset+wantSizes[at]])) {
					t.Fatalf("part %d differs", at)
				}
				at++
			}
		}
		if at != len(want) {
			t.Fatalf("%d parts, want %d", at, len(want))
		}
	})
}

// unnumbered is a packet without its identification, which has no meaning.
func unnumbered(pkt []byte) []byte {
	pkt = bytes.Clone(pkt)
	clear(pkt[idAt : idAt+2])
	clear(pkt[ipSumAt : ipSumAt+2])
	return pkt
}

// FuzzOpen gets whatever a peer may send: what is accepted becomes a bounded number of valid packets.
func FuzzOpen(f *testing.F) {
	pkt := make([]byte, 2000)
	pkt[0], pkt[protocolAt], pkt[flagsAt], pkt[ipHead+sizeAt] = 4<<4|5, protocolTCP, dontFragment, 5<<4
	binary.BigEndian.PutUint16(pkt[totalAt:], uint16(len(pkt)))
	mark(pkt, 1000)
	f.Add(pkt)
	f.Add(pkt[:40])
	f.Fuzz(func(t *testing.T, pkt []byte) {
		_, segment, ok := Open(pkt)
		if !ok {
			return
		}
		n := Parts(pkt, segment)
		if n < 2 || n > 256 {
			t.Fatalf("%d parts", n)
		}
		bufs, sizes := room(n)
		if _, err := Split(pkt, segment, bufs, sizes, offset); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if !valid(bufs[i][offset : offset+sizes[i]]) {
				t.Fatalf("part %d: checksums or lengths", i)
			}
		}
	})
}

// FuzzSplit gets any packet, and what may be said of it: nothing breaks, and what is written is valid.
func FuzzSplit(f *testing.F) {
	pkt := make([]byte, 2000)
	pkt[0], pkt[protocolAt], pkt[ipHead+sizeAt] = 4<<4|5, protocolTCP, 5<<4
	binary.BigEndian.PutUint16(pkt[totalAt:], uint16(len(pkt)))
	f.Add(pkt, 500)
	f.Add(pkt[:20], 0)
	f.Fuzz(func(t *testing.T, pkt []byte, segment int) {
		for _, way := range []func([]byte, int, [][]byte, []int, int) (int, error){Split, func(p []byte, s int, b [][]byte, sizes []int, o int) (int, error) {
			return Divide(p, s, b, sizes, o), nil
		}} {
			bufs, sizes := room(4)
			n, err := way(bytes.Clone(pkt), segment, bufs, sizes, offset)
			if err != nil {
				continue
			}
			for i := range n {
				if out := bufs[i][offset : offset+sizes[i]]; !Marked(out) && !valid(out) {
					t.Fatalf("part %d: checksums or lengths", i)
				}
			}
		}
	})
}
