// Package layout is the contract between the builder of device images, their initrd, `rivulet flash` and the update of
// images: the partitions, and how the slot that boots is chosen. It reads and writes nothing itself.
//
// A disk has four partitions: boot (FAT), two root slots of which one runs and the other takes the next update, and
// data. docs/design/image.md lists the writers of each.
package layout

import "fmt"

// Partitions by number, the same on GPT and MBR.
const (
	Boot  = 1
	RootA = 2
	RootB = 3
	Data  = 4
)

// Labels of the two file systems that have one, for people, and for programs that see one disk only.
const (
	BootLabel = "RVBOOT"
	DataLabel = "RVDATA"
)

// DiskWord, on the kernel's command line, is the identity of the boot partition beside that kernel: the initrd takes the
// disk with it. An image has ImageID and no word; `rivulet flash` gives each disk another one, with the word, and an
// upgrade takes the word over as it does with words of the owner.
const (
	DiskWord = "rivulet.disk"
	ImageID  = 0x52495655
)

// DiskID is an identity of a FAT as programs write it.
func DiskID(id uint32) string { return fmt.Sprintf("%04X-%04X", id>>16, id&0xffff) }

// Sizes in bytes. The data partition grows at the first boot.
const (
	Sector   = 512
	MiB      = 1 << 20
	Start    = 4 * MiB // of the first partition: the erase unit of SD cards
	BootSize = 192 * MiB
	RootSize = 512 * MiB
	// ext4 keeps its first spare superblock at 128 MiB. Without a spare, a power cut during the first growth could
	// destroy the only one, and all data.
	DataSize = 192 * MiB
)

// The initrd writes its findings here for later programs.
const (
	RunDir     = "/run/rivulet-image"
	RunSlot    = RunDir + "/slot"        // a or b
	RunTrying  = RunDir + "/trying"      // the running slot, while it is tried and not evaluated
	DataFailed = RunDir + "/data-failed" // why the data partition could not be used
	BootDir    = "/boot/firmware"        // the FAT partition, read-only
	DataDir    = "/data"
)

// Starts has the slot and the number of its last starts that did not last: the initrd counts, and leaves a slot that does
// not come up for the other. Left, in a slot's folder of the boot partition, has why that slot was left; Good is there if
// the slot was called good, so that another may be left for it.
const (
	Starts = DataDir + "/starts"
	Left   = "left"
	Good   = "good"
)

// RunPart is the file with the device of a partition: boot, a, b or data.
func RunPart(name string) string { return RunDir + "/part-" + name }

// Slot is one of the two root slots.
type Slot byte

const (
	A Slot = 'a'
	B Slot = 'b'
)

func (s Slot) String() string { return string(rune(s)) }

func (s Slot) Valid() bool { return s == A || s == B }

func (s Slot) Other() Slot {
	if s == A {
		return B
	}
	return A
}

// Partition is the number of the slot's partition.
func (s Slot) Partition() int {
	if s == A {
		return RootA
	}
	return RootB
}

// Tries is how often a new slot may start before the device returns to the old one.
const Tries = 3

// EntryName is the file of systemd-boot's entry for a slot. With tried it has a counter, which systemd-boot changes by
// renaming.
func EntryName(s Slot, tried bool) string {
	if tried {
		return fmt.Sprintf("rivulet-%s+%d.conf", s, Tries)
	}
	return fmt.Sprintf("rivulet-%s.conf", s)
}
