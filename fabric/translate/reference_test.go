package translate

import (
	"encoding/binary"

	"pgregory.net/rapid"
)

// packet describes an IPv4 packet. build makes its bytes and computes every
// checksum from scratch: the reference against which the translation is held is
// "describe the packet with other addresses, build it again".
type packet struct {
	src, dst  uint32
	proto     byte
	options   []byte // of IP, padded to words
	payload   []byte
	noSum     bool // UDP without checksum
	syn       bool
	tcpOpts   []byte // padded to words
	mssAt     int    // offset of the MSS value in tcpOpts, -1 without
	icmpType  byte
	quote     *packet // what an ICMP error quotes
	quoteSize int     // bytes of it
}

func sum16(b []byte, sum uint32) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(be16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func (p packet) pseudo(size int) uint32 {
	return p.src>>16 + p.src&0xffff + p.dst>>16 + p.dst&0xffff + uint32(p.proto) + uint32(size)
}

func (p packet) transport() []byte {
	put := binary.BigEndian.PutUint16
	switch p.proto {
	case tcp:
		b := append(make([]byte, 20), p.tcpOpts...)
		put(b, 40000)
		put(b[2:], 80)
		b[12] = byte(len(b)/4) << 4
		b[13] = 0x10
		if p.syn {
			b[13] = 2
		}
		b = append(b, p.payload...)
		put(b[16:], sum16(b, p.pseudo(len(b))))
		return b
	case udp:
		b := append(make([]byte, 8), p.payload...)
		put(b, 5353)
		put(b[4:], uint16(len(b)))
		if !p.noSum {
			sum := sum16(b, p.pseudo(len(b)))
			if sum == 0 {
				sum = 0xffff
			}
			put(b[6:], sum)
		}
		return b
	case icmp:
		b := append([]byte{p.icmpType, 0, 0, 0, 0, 7, 0, 9}, p.payload...)
		if p.quote != nil {
			inner := p.quote.build()
			b = append(b[:8], inner[:min(p.quoteSize, len(inner))]...)
		}
		put(b[2:], sum16(b, 0))
		return b
	}
	return p.payload
}

func (p packet) build() []byte {
	h := append(make([]byte, 20), p.options...)
	h[0] = 4<<4 | byte(len(h)/4)
	h[8], h[9] = 64, p.proto
	binary.BigEndian.PutUint16(h[4:], 0x1234)
	binary.BigEndian.PutUint32(h[12:], p.src)
	binary.BigEndian.PutUint32(h[16:], p.dst)
	return finish(h, p.transport())
}

func finish(h, l4 []byte) []byte {
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(l4)))
	h[10], h[11] = 0, 0
	binary.BigEndian.PutUint16(h[10:], sum16(h, 0))
	return append(append([]byte(nil), h...), l4...)
}

// fragments cuts a built packet so that each but the last carries size bytes (a
// multiple of 8).
func fragments(pkt []byte, size int) [][]byte {
	hl := int(pkt[0]&15) * 4
	var out [][]byte
	for at := hl; at < len(pkt); at += size {
		h := append([]byte(nil), pkt[:hl]...)
		end, more := at+size, uint16(0x2000)
		if end >= len(pkt) {
			end, more = len(pkt), 0
		}
		binary.BigEndian.PutUint16(h[6:], more|uint16((at-hl)/8))
		out = append(out, finish(h, pkt[at:end]))
	}
	return out
}

// clamped is the packet with its MSS lowered to limit.
func (p packet) clamped(limit uint16) packet {
	if p.proto == tcp && p.syn && p.mssAt >= 0 && be16(p.tcpOpts[p.mssAt:]) > limit {
		p.tcpOpts = append([]byte(nil), p.tcpOpts...)
		binary.BigEndian.PutUint16(p.tcpOpts[p.mssAt:], limit)
	}
	return p
}

func bytesOf(t *rapid.T, max int, label string) []byte {
	return rapid.SliceOfN(rapid.Byte(), 0, max).Draw(t, label)
}

// drawPacket draws any packet but an ICMP error.
func drawPacket(t *rapid.T, src, dst uint32) packet {
	p := packet{src: src, dst: dst, mssAt: -1, payload: bytesOf(t, 64, "payload")}
	p.proto = rapid.SampledFrom([]byte{tcp, tcp, udp, udp, icmp, 132}).Draw(t, "proto")
	p.noSum = rapid.Bool().Draw(t, "no checksum")
	p.icmpType = rapid.SampledFrom([]byte{0, 8}).Draw(t, "echo")
	if rapid.Bool().Draw(t, "ip options") {
		p.options = []byte{7, 7, 4, 0, 0, 0, 0, 0} // record route, padding
	}
	if p.syn = rapid.Bool().Draw(t, "syn"); p.syn && rapid.Bool().Draw(t, "mss") {
		pad := rapid.IntRange(0, 3).Draw(t, "nops before the MSS")
		for range pad {
			p.tcpOpts = append(p.tcpOpts, 1)
		}
		p.tcpOpts = append(p.tcpOpts, 2, 4)
		p.mssAt = len(p.tcpOpts)
		p.tcpOpts = binary.BigEndian.AppendUint16(p.tcpOpts, rapid.Uint16().Draw(t, "mss value"))
		for len(p.tcpOpts)%4 != 0 {
			p.tcpOpts = append(p.tcpOpts, 0)
		}
	}
	return p
}
