package layout

import "encoding/binary"

// SyslinuxFile is syslinux's own file on the boot partition. Its last two sectors say,
// twice for the case that one is torn, what it is to start the next time only; it
// wipes them before it does so, and then takes what DEFAULT names again. A kernel that
// dies at once is thus started once, and the good slot finds that out.
//
// Their form is syslinux's "auxiliary data vector" (syslinux 6, core/adv.inc,
// libinstaller/setadv.c): magic, checksum, records of a tag, a length and a value,
// magic. All numbers are little-endian.
const SyslinuxFile = "syslinux/ldlinux.sys"

// OnceFile, in a slot's folder, is Once of that slot: the initrd of the good one has
// it written again as long as there are tries.
const OnceFile = "once"

const (
	onceHead, onceSum, onceTail = 0x5a2d2fa5, 0xa3041767, 0xdd28bf64
	onceTag                     = 1 // boot once
	onceRecords                 = 500
)

// Once makes the end of SyslinuxFile that has a slot started once; of 0, none.
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

// HasOnce reports whether a file is syslinux's and ends as Once does, for whichever
// slot. One sector of the two will do, as it does for syslinux.
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
