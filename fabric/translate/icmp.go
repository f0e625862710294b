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

// quoted mends an ICMP message, whose own checksum knows nothing of the outer
// addresses. In an error the quoted packet went the other way, between the same
// two clusters, and must be shown to its sender as it was sent: one address and
// both its checksums change, and the message's checksum with them. Redirects are
// refused: no peer tells us our routes.
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
		// What follows a short packet's end is an extension of the message (RFC 4884).
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
