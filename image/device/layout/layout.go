// Package layout is the agreement between those who build a device image, its
// initrd, `rivulet flash` and the update of images: which partition is what, and
// how the slot that boots is chosen. It reads and writes nothing by itself.
//
// A disk has four partitions: boot (FAT), two root slots of which one runs and the
// other takes the next update, and data. See docs/design/image.md for who writes what.
package layout

import "fmt"

// Partitions by number, on GPT and MBR alike.
const (
	Boot  = 1
	RootA = 2
	RootB = 3
	Data  = 4
)

// Labels of the two file systems that have one. The boot disk is the one whose
// first partition carries BootLabel.
const (
	BootLabel = "RVBOOT"
	DataLabel = "RVDATA"
)

// Sizes in bytes. The data partition grows at the first boot.
const (
	Sector   = 512
	MiB      = 1 << 20
	Start    = 4 * MiB // of the first partition: what SD cards erase at once
	BootSize = 192 * MiB
	RootSize = 512 * MiB
	// ext4 keeps its first spare superblock at 128 MiB: without one, power that goes while the
	// only one is written, at the first growth, would take all.
	DataSize = 192 * MiB
)

// Where the initrd leaves what it found, for those who run later.
const (
	RunDir     = "/run/rivulet-image"
	RunSlot    = RunDir + "/slot"        // a or b
	RunTrying  = RunDir + "/trying"      // the slot that runs, if it is tried and nobody judges it yet
	DataFailed = RunDir + "/data-failed" // why the data partition could not be used
	BootDir    = "/boot/firmware"        // the FAT partition, read-only
	DataDir    = "/data"
)

// RunPart is the file with the device of a partition: boot, a, b or data.
func RunPart(name string) string { return RunDir + "/part-" + name }

// Slot is one of the two.
type Slot byte

// The slots.
const (
	A Slot = 'a'
	B Slot = 'b'
)

func (s Slot) String() string { return string(rune(s)) }

// Valid says whether it is one of the two.
func (s Slot) Valid() bool { return s == A || s == B }

// Other is the slot that s is not.
func (s Slot) Other() Slot {
	if s == A {
		return B
	}
	return A
}

// Partition is the slot's number on the disk.
func (s Slot) Partition() int {
	if s == A {
		return RootA
	}
	return RootB
}

// Tries is how often a new slot may start before the old one comes back.
const Tries = 3

// EntryName is the file of systemd-boot's entry for a slot; tried, it carries a
// counter that systemd-boot moves on by renaming.
func EntryName(s Slot, tried bool) string {
	if tried {
		return fmt.Sprintf("rivulet-%s+%d.conf", s, Tries)
	}
	return fmt.Sprintf("rivulet-%s.conf", s)
}
