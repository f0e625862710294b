package translate

import "encoding/binary"

const (
	icmp    = 1
	tcp     = 6
	udp     = 17
	dccp    = 33
	udpLite = 136

	srcAt, dstAt = 12, 16 // offsets in the IPv4 header
	minHeader    = 20
)

// Out translates a packet to a peer, in place, and reports whether it may pass.
func (t *Table) Out(pkt []byte) bool {
	h, ok := parse(pkt)
	if !ok || h.total > len(pkt) {
		return false
	}
	r := t.find(h.dst)
	if r == nil {
		return t.passNode(pkt, h, h.dst)
	}
	pkt = pkt[:h.total]
	if r.out.has(h.src) {
		return t.rewrite(pkt, h, srcAt, r.out.do(h.src), r.out.delta, r, &r.out, dstAt)
	}
	// A router on the way to the pod, or this host, reports an error from an address that has no mapping for the peer:
	// it passes as the prefix's first address.
	if h.proto == icmp && h.offset == 0 && isError(pkt[h.size:]) {
		addr := r.out.first()
		return t.rewrite(pkt, h, srcAt, addr, diff32(h.src, addr), r, &r.out, dstAt)
	}
	return false
}

// In translates a packet from a peer, in place, and reports whether it may pass. WireGuard has already checked that the
// source address is the peer's.
func (t *Table) In(pkt []byte) bool {
	h, ok := parse(pkt)
	if !ok || h.total > len(pkt) {
		return false
	}
	r := t.find(h.src)
	if r == nil {
		return t.passNode(pkt, h, h.src)
	}
	if !r.in.has(h.dst) {
		return false
	}
	return t.rewrite(pkt[:h.total], h, dstAt, r.in.do(h.dst), r.in.delta, r, &r.in, srcAt)
}

// rewrite writes addr at offset at of the header and updates the checksums. In an ICMP error, the quoted packet
// travelled in the other direction: its address at quotedAt is moved by m.
func (t *Table) rewrite(pkt []byte, h header, at int, addr, delta uint32, r *rule, m *move, quotedAt int) bool {
	l4 := pkt[h.size:]
	// Without a collision nothing is changed, not even a checksum's other form of 0.
	same := be32(pkt[at:]) == addr
	switch {
	case h.offset == 0:
		switch h.proto {
		case tcp:
			if len(l4) < 20 {
				return false
			}
			if !same {
				fix(l4[16:], delta)
			}
			r.clamp(l4)
		case udp, udpLite:
			if len(l4) < 8 {
				return false
			}
			if !same {
				fixUDP(l4[6:], delta)
			}
		case dccp:
			if len(l4) < 12 {
				return false
			}
			if !same {
				fix(l4[6:], delta)
			}
		case icmp:
			if len(l4) < 4 || !quoted(l4, r, m, quotedAt) {
				return false
			}
		}
	case h.proto == tcp && h.offset < 24:
		return false // would overwrite the header that was just checked (RFC 1858)
	}
	if !same {
		binary.BigEndian.PutUint32(pkt[at:], addr)
		fix(pkt[10:], delta)
	}
	return true
}

// header has the relevant fields of an IPv4 header.
type header struct {
	size, total int // bytes
	offset      int // of a fragment, bytes
	proto       byte
	src, dst    uint32
}

// parse reads an IPv4 header and refuses broken and source-routed ones. The total length may exceed pkt: quoted packets
// are cut short.
func parse(pkt []byte) (header, bool) {
	if len(pkt) < minHeader || pkt[0]>>4 != 4 {
		return header{}, false
	}
	h := header{
		size:   int(pkt[0]&15) * 4,
		total:  int(be16(pkt[2:])),
		offset: int(be16(pkt[6:])&0x1fff) * 8,
		proto:  pkt[9],
		src:    be32(pkt[srcAt:]),
		dst:    be32(pkt[dstAt:]),
	}
	if h.size < minHeader || h.size > len(pkt) || h.total < h.size {
		return header{}, false
	}
	return h, h.size == minHeader || !sourceRouted(pkt[minHeader:h.size])
}

// sourceRouted reports whether IPv4 options name further hops, or cannot be read.
func sourceRouted(options []byte) bool {
	for i := 0; i < len(options); {
		switch options[i] {
		case 0:
			return false
		case 1:
			i++
			continue
		case 131, 137: // loose, strict
			return true
		}
		if i+1 >= len(options) || options[i+1] < 2 || i+int(options[i+1]) > len(options) {
			return true
		}
		i += int(options[i+1])
	}
	return false
}

// clamp lowers the MSS of a SYN to what fits the path to the peer in one packet.
func (r *rule) clamp(seg []byte) {
	const syn = 2
	if r.mss == 0 || seg[13]&syn == 0 {
		return
	}
	end := min(int(seg[12]>>4)*4, len(seg))
	for i := 20; i+1 < end; {
		kind, size := seg[i], int(seg[i+1])
		if kind == 0 {
			return
		}
		if kind == 1 {
			i++
			continue
		}
		if size < 2 || i+size > end {
			return
		}
		if kind == 2 && size == 4 {
			r.setMSS(seg, i+2)
			return
		}
		i += size
	}
}

func (r *rule) setMSS(seg []byte, at int) {
	old := be16(seg[at:])
	if old <= r.mss {
		return
	}
	binary.BigEndian.PutUint16(seg[at:], r.mss)
	if at%2 == 0 {
		fix(seg[16:], diff16(old, r.mss))
	} else { // the two bytes are halves of two words
		fix(seg[16:], diff16(old<<8|old>>8, r.mss<<8|r.mss>>8))
	}
}
