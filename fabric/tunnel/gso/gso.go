// Package gso has TCP packets that are larger than the MTU: many segments of one connection under one header, as
// network stacks give them to devices that split them (segmentation offload). A tunnel over a stream has no MTU, so such
// a packet passes it in one piece, as one message of WireGuard.
//
//	stack ── packet of 64 KiB ──┬─ path with an MTU ── Split ── packets, each complete
//	                            └─ stream ── Mark ══ WireGuard ══ Open ── packet of 64 KiB, size of its segments
//
// It reads and writes the given packets only. A packet from a peer may contain anything: Open checks all of it that is
// used. A packet that is refused is dropped, and TCP sends again.
package gso

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

const (
	// Largest is the largest packet that passes in one piece, bytes: WireGuard adds a header, padding and a tag, and its
	// message has at most 65535.
	Largest = 1<<16 - 1 - 16 - 15 - 16
	// MinSegment bounds the packets that one from a peer becomes: 256.
	MinSegment = 256

	ipHead  = 20 // without options
	tcpHead = 20
)

// Offsets in an IPv4 header without options, and in the TCP header.
const (
	totalAt, idAt, flagsAt, protocolAt, ipSumAt, sourceAt = 2, 4, 6, 9, 10, 12

	sequenceAt, sizeAt, tcpFlagsAt, tcpSumAt = 4, 12, 13, 16

	udpLengthAt, udpSumAt, udpHead = 4, 6, 8
)

const (
	protocolTCP, protocolUDP = 6, 17

	// The first byte of the fragment fields.
	reserved, dontFragment, fragmentBits = 0x80, 0x40, 0x3f

	finish, synchronize, reset, push, urgent, congested = 0x01, 0x02, 0x04, 0x08, 0x20, 0x80
)

var errPacket = errors.New("gso: no packet that can be split")

// headOf returns the length of the headers of a TCP or UDP packet over IPv4 that can be split; 0 is none.
func headOf(pkt []byte) int {
	if len(pkt) < ipHead || pkt[0]>>4 != 4 || pkt[flagsAt]&fragmentBits != 0 || pkt[flagsAt+1] != 0 ||
		int(binary.BigEndian.Uint16(pkt[totalAt:])) != len(pkt) {
		return 0
	}
	ip, head := ipHeadOf(pkt), 0
	switch {
	case ip < ipHead || len(pkt) < ip+udpHead:
		return 0
	case pkt[protocolAt] == protocolUDP:
		head = ip + udpHead
	case pkt[protocolAt] == protocolTCP && len(pkt) >= ip+tcpHead:
		if head = ip + int(pkt[ip+sizeAt]>>4)*4; head < ip+tcpHead {
			return 0
		}
	}
	if head > len(pkt) {
		return 0
	}
	return head
}

// ipHeadOf is the length of the IP header.
func ipHeadOf(pkt []byte) int { return int(pkt[0]&15) * 4 }

// passes reports whether a packet, or parts of it, with segments of this size may pass in one piece. The identification
// has no meaning then, since the packet is never fragmented.
func passes(pkt []byte, segment int) (head int, ok bool) {
	head = headOf(pkt)
	const others = synchronize | reset | urgent | congested
	return head, head > 0 && pkt[protocolAt] == protocolTCP && ipHeadOf(pkt) == ipHead && pkt[flagsAt] == dontFragment && pkt[ipHead+tcpFlagsAt]&others == 0 &&
		segment >= MinSegment && head+segment <= Largest
}

// mark makes a packet that passes one on the wire: the reserved bit of IPv4 marks it, and its identification is the size
// of its segments. Open computes the checksums.
func mark(pkt []byte, segment int) {
	pkt[flagsAt] |= reserved
	binary.BigEndian.PutUint16(pkt[idAt:], uint16(segment))
}

// Marked reports whether a packet has the mark. No other packets may have that bit.
func Marked(pkt []byte) bool {
	return len(pkt) > flagsAt && pkt[0]>>4 == 4 && pkt[flagsAt]&reserved != 0
}

// Open checks a marked packet and makes it one for a stack: without the mark, with the checksum of its IP header, and
// that of TCP as far as a device that splits packets expects it: over the pseudo header.
func Open(pkt []byte) (head, segment int, ok bool) {
	if !Marked(pkt) {
		return 0, 0, false
	}
	pkt[flagsAt] &^= reserved
	segment = int(binary.BigEndian.Uint16(pkt[idAt:]))
	if head, ok = passes(pkt, segment); !ok || len(pkt) <= head+segment || len(pkt) > Largest {
		return 0, 0, false
	}
	sumIP(pkt)
	binary.BigEndian.PutUint16(pkt[ipHead+tcpSumAt:], fold(pseudo(pkt, len(pkt)-ipHead)))
	return head, segment, true
}

// Parts returns how many packets Split makes.
func Parts(pkt []byte, segment int) int {
	head := headOf(pkt)
	if head == 0 || segment <= 0 {
		return 0
	}
	return max(1, (len(pkt)-head+segment-1)/segment)
}

// Split writes the packet's parts into bufs from offset, each with at most segment bytes of data and with all checksums,
// and returns their number. Pkt may begin at offset in the first of bufs. Of a UDP packet the parts are datagrams. Of more
// parts than bufs the first ones are written: whoever sent the others sends them again, as after a loss.
func Split(pkt []byte, segment int, bufs [][]byte, sizes []int, offset int) (int, error) {
	head, all := headOf(pkt), Parts(pkt, segment)
	if all == 0 {
		return 0, errPacket
	}
	n := min(all, len(bufs))
	// The last is first: the first may be in the place of pkt.
	for i := n - 1; i >= 0; i-- {
		from := head + i*segment
		to := min(from+segment, len(pkt))
		size := head + to - from
		if len(bufs[i]) < offset+size {
			return 0, errPacket
		}
		out := bufs[i][offset : offset+size]
		if i > 0 || &out[0] != &pkt[0] {
			copy(out, pkt[:head])
			copy(out[head:], pkt[from:to])
		}
		sizes[i] = size
		place(out, i, i*segment, i == all-1)
		complete(out)
	}
	return n, nil
}

// Divide writes the packet as one or more marked ones into bufs, from offset; of the rest it makes a complete one. It
// returns 0 for a packet that must be split. Pkt may begin at offset in the first of bufs.
func Divide(pkt []byte, segment int, bufs [][]byte, sizes []int, offset int) int {
	head, ok := passes(pkt, segment)
	if !ok {
		return 0
	}
	most := (Largest - head) / segment * segment
	n := Parts(pkt, most)
	if n > len(bufs) || len(bufs[0]) < offset+Largest {
		return 0
	}
	for i := n - 1; i >= 0; i-- {
		from := head + i*most
		to := min(from+most, len(pkt))
		out := bufs[i][offset : offset+head+to-from]
		if i > 0 || &out[0] != &pkt[0] {
			copy(out, pkt[:head])
			copy(out[head:], pkt[from:to])
		}
		sizes[i] = len(out)
		place(out, i, i*most, i == n-1)
		if to-from > segment {
			mark(out, segment)
		} else {
			complete(out)
		}
	}
	return n
}

// place makes the headers of a copy those of the part with data from at, without checksums.
func place(out []byte, part, at int, last bool) {
	binary.BigEndian.PutUint16(out[totalAt:], uint16(len(out)))
	binary.BigEndian.PutUint16(out[idAt:], binary.BigEndian.Uint16(out[idAt:])+uint16(part))
	l4 := out[ipHeadOf(out):]
	if out[protocolAt] == protocolUDP {
		binary.BigEndian.PutUint16(l4[udpLengthAt:], uint16(len(l4)))
		return
	}
	binary.BigEndian.PutUint32(l4[sequenceAt:], binary.BigEndian.Uint32(l4[sequenceAt:])+uint32(at))
	if part > 0 {
		l4[tcpFlagsAt] &^= congested // only the first reports it
	}
	if !last {
		l4[tcpFlagsAt] &^= finish | push
	}
}

// complete computes all checksums.
func complete(out []byte) {
	sumIP(out)
	l4, sumAt := out[ipHeadOf(out):], tcpSumAt
	if out[protocolAt] == protocolUDP {
		sumAt = udpSumAt
	}
	binary.BigEndian.PutUint16(l4[sumAt:], 0)
	sum := ^fold(add(l4, pseudo(out, len(l4))))
	if sum == 0 && sumAt == udpSumAt {
		sum = 0xffff // 0 means none
	}
	binary.BigEndian.PutUint16(l4[sumAt:], sum)
}

func sumIP(pkt []byte) {
	binary.BigEndian.PutUint16(pkt[ipSumAt:], 0)
	binary.BigEndian.PutUint16(pkt[ipSumAt:], ^fold(add(pkt[:ipHeadOf(pkt)], 0)))
}

// Sum completes a checksum: of pkt from start, with what is at start+at, which is over the pseudo header.
func Sum(pkt []byte, start, at int) error {
	if start+at+2 > len(pkt) {
		return errPacket
	}
	field := pkt[start+at:]
	begun := uint64(binary.BigEndian.Uint16(field))
	binary.BigEndian.PutUint16(field, 0)
	binary.BigEndian.PutUint16(field, ^fold(add(pkt[start:], begun)))
	return nil
}

// pseudo is the sum over the pseudo header of TCP or UDP.
func pseudo(pkt []byte, length int) uint64 {
	return add(pkt[sourceAt:ipHead], uint64(pkt[protocolAt])+uint64(length))
}

// add adds the 16-bit words of b, 64 bits at a time: the ones' complement sum does not depend on the width.
func add(b []byte, sum uint64) uint64 {
	var carry uint64
	for len(b) >= 32 {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), 0)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[8:]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[16:]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[24:]), carry)
		sum, carry = bits.Add64(sum, 0, carry)
		sum += carry
		b = b[32:]
	}
	for len(b) >= 4 {
		sum, carry = bits.Add64(sum, uint64(binary.BigEndian.Uint32(b)), 0)
		sum += carry
		b = b[4:]
	}
	if len(b) >= 2 {
		sum, carry = bits.Add64(sum, uint64(binary.BigEndian.Uint16(b)), 0)
		sum += carry
		b = b[2:]
	}
	if len(b) == 1 {
		sum, carry = bits.Add64(sum, uint64(b[0])<<8, 0)
		sum += carry
	}
	return sum
}

// fold is the sum in 16 bits.
func fold(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return uint16(sum)
}
