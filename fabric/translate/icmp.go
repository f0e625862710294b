package translate

import "encoding/binary"

const (
	unreachable  = 3
	quench       = 4
	redirect     = 5
	timeExceeded = 11
	badParameter = 12
)

// isError reports whether an ICMP message quotes the packet it is about.
func isError(msg []byte) bool {
	if len(msg) < 8+minHeader {
		return false
	}
	switch msg[0] {
	case unreachable, quench, timeExceeded, badParameter:
		return true
	}
	return false
}

// quoted updates an ICMP message, whose own checksum does not cover the outer addresses. In an error the quoted packet
// travelled in the other direction, between the same two clusters, and must look to its sender as it was sent: one
// address and both its checksums change, and with them the message's checksum. Redirects are refused: peers do not set
// routes here.
func quoted(msg []byte, r *rule, m *move, at int) bool {
	switch msg[0] {
	case redirect:
		return false
	case unreachable, quench, timeExceeded, badParameter:
	default:
		return true
	}
	if !isError(msg) {
		return false
	}
	pkt := msg[8:]
	h, ok := parse(pkt)
	if !ok {
		return false
	}
	ours, theirs := h.dst, h.src
	if at == srcAt {
		ours, theirs = h.src, h.dst
	}
	if !m.has(ours) || !r.covers(theirs) {
		return false
	}
	if m.same() {
		return true
	}
	binary.BigEndian.PutUint32(pkt[at:], m.do(ours))
	delta := m.delta + fix(pkt[10:], m.delta)
	if h.offset == 0 {
		// After a short packet's end follows an extension of the message (RFC 4884).
		l4 := pkt[h.size:min(h.total, len(pkt))]
		switch {
		case h.proto == tcp && len(l4) >= 18:
			delta += fix(l4[16:], m.delta)
		case (h.proto == udp || h.proto == udpLite) && len(l4) >= 8:
			delta += fixUDP(l4[6:], m.delta)
		case h.proto == dccp && len(l4) >= 8:
			delta += fix(l4[6:], m.delta)
		}
	}
	fix(msg[2:], delta)
	return true
}
