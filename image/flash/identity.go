package flash

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"

	"github.com/diskfs/go-diskfs/filesystem"

	"rivulet/image/device/layout"
)

// commands are the files of the boot partition with the command line of the image's slot, by loader.
var commands = []string{
	layout.A.String() + "/" + layout.CommandFile,
	layout.A.String() + "/" + layout.SyslinuxEntry,
	"loader/entries/" + layout.EntryName(layout.A, false),
}

// Identify gives a disk with a device image identities of its own: partition table, partitions, boot and data file
// systems. Those in an image are the same in every copy. The boot file system's is written into the kernel's command
// line, too, which the loader reads from the disk that it starts: by it the initrd finds that disk among several. A disk
// with anything else stays as it is.
func Identify(f *os.File) error {
	start, size, err := partition(f, layout.Boot)
	if err != nil {
		return nil //nolint:nilerr // no device image
	}
	boot := make([]byte, sector)
	if _, err := f.ReadAt(boot, start); err != nil || !isBoot(boot) {
		return nil //nolint:nilerr // as above
	}
	id := random(4)
	word := layout.DiskWord + "=" + layout.DiskID(binary.LittleEndian.Uint32(id))
	// A FAT has a copy of its first sector.
	for _, at := range []int64{0, int64(binary.LittleEndian.Uint16(boot[50:])) * sector} {
		if _, err := f.WriteAt(id, start+at+67); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil { // cut off here, the disk has no word, and is found without
		return err
	}
	if err := onFAT(f, start, size, true, func(v filesystem.FileSystem) error { return nameDisk(v, word) }); err != nil {
		return err
	}
	if err := errors.Join(recount(f, start, boot), newTable(f), newData(f), f.Sync()); err != nil {
		return err
	}
	Forget(f)
	if _, err := f.ReadAt(boot, start); err != nil || string(boot[67:71]) != string(id) {
		return fmt.Errorf("the identity of the boot partition is not read back as it was written (%v)", err)
	}
	return onFAT(f, start, size, false, func(v filesystem.FileSystem) error { return named(v, word) })
}

// isBoot reports whether a boot sector is that of a device image.
func isBoot(boot []byte) bool {
	return string(boot[82:90]) == "FAT32   " && string(boot[71:82]) == fmt.Sprintf("%-11s", layout.BootLabel)
}

// nameDisk adds a word to the command lines of the image's slot.
func nameDisk(v filesystem.FileSystem, word string) error {
	for _, name := range commands {
		raw, err := readFAT(v, name)
		if err != nil {
			continue // of another loader
		}
		if err := writeFAT(v, name, []byte(layout.Add(name, string(raw), []string{word}))); err != nil {
			return err
		}
	}
	return nil
}

// named checks that the command lines of the image's slot, one at least, have a word.
func named(v filesystem.FileSystem, word string) error {
	found := false
	for _, name := range commands {
		raw, err := readFAT(v, name)
		if err != nil {
			continue // of another loader
		}
		if !slices.Contains(layout.Added(name, string(raw), layout.A), word) {
			return fmt.Errorf("%s is not read back as it was written", name)
		}
		found = true
	}
	if !found {
		return errors.New("the boot partition has no command line of a kernel")
	}
	return nil
}

// newTable gives the partition table new identities: an MBR its signature, by which its partitions are named, a GPT
// those of the disk and of each partition, in both copies.
func newTable(f *os.File) error {
	le, b := binary.LittleEndian, make([]byte, 2*sector)
	if _, err := f.ReadAt(b, 0); err != nil {
		return err
	}
	if !isGPT(b) {
		_, err := f.WriteAt(random(4), 440)
		return err
	}
	disk, parts := guid(), map[int][]byte{}
	for _, at := range []int64{1, int64(le.Uint64(b[sector+32:]))} {
		h := make([]byte, sector)
		if _, err := f.ReadAt(h, at*sector); err != nil {
			return err
		}
		length, count, each := le.Uint32(h[12:]), int(le.Uint32(h[80:])), int(le.Uint32(h[84:]))
		if string(h[:8]) != "EFI PART" || length < 92 || length > sector || count > 1024 || each < 128 || each > 4096 {
			return fmt.Errorf("the partition table in sector %d is damaged", at)
		}
		entries := make([]byte, count*each)
		if _, err := f.ReadAt(entries, int64(le.Uint64(h[72:]))*sector); err != nil {
			return err
		}
		for i := range count {
			if e := entries[i*each:]; !zeros(e[:16]) {
				if parts[i] == nil {
					parts[i] = guid()
				}
				copy(e[16:32], parts[i])
			}
		}
		copy(h[56:72], disk)
		le.PutUint32(h[88:], crc32.ChecksumIEEE(entries))
		le.PutUint32(h[16:], 0)
		le.PutUint32(h[16:], crc32.ChecksumIEEE(h[:length]))
		if _, err := f.WriteAt(entries, int64(le.Uint64(h[72:]))*sector); err != nil {
			return err
		}
		if _, err := f.WriteAt(h, at*sector); err != nil {
			return err
		}
	}
	return nil
}

// The fields of ext4's superblock that newData uses (Linux: fs/ext4/ext4.h).
const (
	superAt, superSize = 1024, 1024
	perGroup           = 0x20 // blocks in a group; all groups have a place for a superblock, the second one has it
	logBlock           = 0x18 // size of a block, 1024 << n
	magic, superUUID   = 0x38, 0x68
	incompatible       = 0x60
	csumSeed           = 0x2000 // the identity is in no checksum but the superblock's
	superSum           = 0x3fc
)

// newData gives the data file system a new identity: its superblock and the spare one, which is in the second group. An
// image whose other checksums depend on the identity keeps it.
func newData(f *os.File) error {
	start, size, err := partition(f, layout.Data)
	if err != nil {
		return nil //nolint:nilerr // there is none
	}
	le, id, s := binary.LittleEndian, guid(), make([]byte, superSize)
	for _, spare := range []bool{false, true} {
		at := int64(superAt)
		if spare {
			at = int64(le.Uint32(s[perGroup:])) * 1024 << le.Uint32(s[logBlock:])
		}
		if at+superSize > size {
			return nil
		}
		if _, err := f.ReadAt(s, start+at); err != nil {
			return err
		}
		if le.Uint16(s[magic:]) != 0xef53 || le.Uint32(s[incompatible:])&csumSeed == 0 || le.Uint32(s[logBlock:]) > 6 {
			return nil
		}
		copy(s[superUUID:], id)
		le.PutUint32(s[superSum:], ^crc32.Checksum(s[:superSum], crc32.MakeTable(crc32.Castagnoli)))
		if _, err := f.WriteAt(s, start+at); err != nil {
			return err
		}
	}
	return nil
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it cannot fail
	return b
}

// guid is a random one (RFC 9562, version 4), in the byte order of a GPT, which is as good as any other for ext4.
func guid() []byte {
	b := random(16)
	b[6], b[7], b[8] = b[6]&0x0f|0x40, b[7]&0x0f|0x40, b[8]&0x3f|0x80
	return b
}
