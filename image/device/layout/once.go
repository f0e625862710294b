package layout

import "encoding/binary"

// SyslinuxFile is syslinux's own file on the boot partition. Its last two sectors name, in two copies because a write
// may be cut, what syslinux starts the next time only. It clears them before that start, and returns to DEFAULT
// afterwards. A kernel that crashes at once is thus started once, and the good slot finds that out.
//
// Their format is syslinux's "auxiliary data vector" (syslinux 6, core/adv.inc, libinstaller/setadv.c): magic,
// checksum, records of a tag, a length and a value, magic. All numbers are little-endian.
const SyslinuxFile = "syslinux/ldlinux.sys"

// OnceFile, in a slot's folder, is Once of that slot: the good slot's initrd writes it again while tries are left.
const OnceFile = "once"

const (
	onceHead, onceSum, onceTail = 0x5a2d2fa5, 0xa3041767, 0xdd28bf64
	onceTag                     = 1 // boot once
	onceRecords                 = 500
)

// Once makes the end of SyslinuxFile that starts a slot once; for 0, none.
func Once(s Slot) []byte {
	records := make([]byte, onceRecords)
	if s.Valid() {
		copy(records, []byte{onceTag, 1, byte(s)})
	}
	sum := uint32(onceSum)
	for i := 0; i < onceRecords; i += 4 {
		sum -= binary.LittleEndian.Uint32(records[i:])
	}
	sector := binary.LittleEndian.AppendUint32(nil, onceHead)
	sector = binary.LittleEndian.AppendUint32(sector, sum)
	sector = append(sector, records...)
	sector = binary.LittleEndian.AppendUint32(sector, onceTail)
	return append(sector, sector...)
}

// HasOnce reports whether a file is syslinux's and ends with Once of any slot. One valid copy is enough, as for
// syslinux.
func HasOnce(file []byte) bool {
	if len(file) < 2*Sector {
		return false
	}
	end := file[len(file)-2*Sector:]
	whole := func(s []byte) bool {
		sum := uint32(0)
		for i := 4; i < Sector-4; i += 4 {
			sum += binary.LittleEndian.Uint32(s[i:])
		}
		return binary.LittleEndian.Uint32(s) == onceHead && binary.LittleEndian.Uint32(s[Sector-4:]) == onceTail && sum == onceSum
	}
	return whole(end[:Sector]) || whole(end[Sector:])
}
