package translate

import "encoding/binary"

// Checksums are updated by difference (RFC 1624, equation 3): a checksum is the complement of a one's complement sum,
// so replacing words adds (complement of the old) + (the new) to the complement of the checksum. Sums stay unfolded in
// 32 bits, which is enough for 65536 words.

func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }

func diff16(old, new uint16) uint32 { return uint32(^old) + uint32(new) }

func diff32(old, new uint32) uint32 {
	return diff16(uint16(old>>16), uint16(new>>16)) + diff16(uint16(old), uint16(new))
}

func fold(sum uint32) uint16 {
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return uint16(sum)
}

// fix adds delta to the checksum at b and returns the resulting difference for a checksum that covers this one.
func fix(b []byte, delta uint32) uint32 {
	old := be16(b)
	sum := ^fold(uint32(^old) + delta)
	binary.BigEndian.PutUint16(b, sum)
	return diff16(old, sum)
}

// fixUDP is fix for UDP, where 0 means "no checksum" and a sum of 0 is sent as 0xffff.
func fixUDP(b []byte, delta uint32) uint32 {
	old := be16(b)
	if old == 0 {
		return 0
	}
	fix(b, delta)
	if be16(b) == 0 {
		b[0], b[1] = 0xff, 0xff
	}
	return diff16(old, be16(b))
}
