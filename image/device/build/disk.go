package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"rivulet/image/device/card"
	"rivulet/image/device/layout"
)

const rootLimit = layout.RootSize

// extent is one partition of the image: its content, and how much of it is written.
type extent struct {
	begin, size int64
	file        string
	whole       bool // its zeros have a meaning
}

// partitions are the four of the image, in order.
func (j *job) partitions() []extent {
	at, all := int64(layout.Start), []extent{
		{size: layout.BootSize, file: "boot.vfat"},
		{size: layout.RootSize, file: "root.squashfs"},
		{size: layout.RootSize},
		{size: layout.DataSize, file: "data.ext4", whole: true},
	}
	for i := range all {
		all[i].begin = at
		at += all[i].size
	}
	return all
}

// imageSize leaves room for the second partition table.
const imageSize = layout.Start + layout.BootSize + 2*layout.RootSize + layout.DataSize + layout.MiB

// table is the input of sfdisk. The identities of disk and partitions are the same in every image; `rivulet flash` gives
// each disk its own.
func (j *job) table() string {
	var b strings.Builder
	if j.arch == "arm64" { // required by the boot ROM of the Raspberry Pi 3
		b.WriteString("label: dos\nlabel-id: 0x52495655\nunit: sectors\n")
	} else {
		b.WriteString("label: gpt\nlabel-id: 52495655-0000-4000-8000-000000000000\nunit: sectors\n")
	}
	kinds := map[bool][]string{
		true:  {"c, bootable", "83", "83", "83"},
		false: {"C12A7328-F81F-11D2-BA4B-00A0C93EC93B", "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709", "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709", "0FC63DAF-8483-4772-8E79-3D69D8477DE4"},
	}[j.arch == "arm64"]
	names := []string{"rivulet-boot", "rivulet-a", "rivulet-b", "rivulet-data"}
	for i, p := range j.partitions() {
		fmt.Fprintf(&b, "start=%d, size=%d, type=%s", p.begin/layout.Sector, p.size/layout.Sector, kinds[i])
		if j.arch != "arm64" {
			fmt.Fprintf(&b, ", uuid=52495655-0000-4000-8000-00000000000%d, name=%s", i+1, names[i])
			if i == 0 {
				b.WriteString(", attrs=LegacyBIOSBootable") // gptmbr.bin boots the partition with it
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// disk combines the partitions and the loader for BIOS.
func (j *job) disk() error {
	if err := errors.Join(j.makeFAT(), j.makeData()); err != nil {
		return err
	}
	raw := j.rawImage()
	os.Remove(raw)
	f, err := os.Create(raw)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(imageSize); err != nil {
		return err
	}
	if err := runIn("", nil, j.table(), "sfdisk", "-q", "--no-reread", "--no-tell-kernel", "--wipe", "never", raw); err != nil {
		return err
	}
	for _, p := range j.partitions() {
		if p.file == "" {
			continue
		}
		if err := copyAt(f, filepath.Join(j.work, p.file), p.begin); err != nil {
			return err
		}
	}
	if j.arch == "amd64" {
		code, err := os.ReadFile(filepath.Join(j.work, biosCode))
		if err != nil {
			return err
		}
		if _, err := f.WriteAt(code[:min(440, len(code))], 0); err != nil {
			return err
		}
	}
	return f.Close()
}

// check reads an image for the Raspberry Pi as its firmware will, because a board that does not start shows no error.
// An image for a PC is tested in an emulator; here its signatures are.
func (j *job) check() error {
	if j.arch != "arm64" {
		if err := j.checkPC(); err != nil {
			return fmt.Errorf("no PC with Secure Boot would start it: %w; mend image/device/build, or packages.list", err)
		}
		return nil
	}
	_, found, err := card.Image(j.rawImage())
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("no Raspberry Pi would start it: %s; mend image/device/build, or packages.list", strings.Join(found, "; "))
	}
	return err
}

func (j *job) rawImage() string { return filepath.Join(j.work, "disk.img") }

// copyAt copies a file into the image, with holes for its zeros.
func copyAt(to *os.File, from string, at int64) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for {
		n, err := io.ReadFull(f, buf)
		if len(bytes.TrimRight(buf[:n], "\x00")) > 0 {
			if _, err := to.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (j *job) epochEnv() []string {
	t := fmt.Sprint(j.epoch.Unix())
	return []string{"SOURCE_DATE_EPOCH=" + t, "E2FSPROGS_FAKE_TIME=" + t, "MTOOLS_SKIP_CHECK=1"}
}

// makeFAT makes the boot partition, with syslinux for PCs. hidden is its first sector on the disk, which the loader in
// the partition needs.
func (j *job) makeFAT() error {
	fat := filepath.Join(j.work, "boot.vfat")
	os.Remove(fat)
	if err := settle(j.fat, j.epoch); err != nil {
		return err
	}
	if err := runIn("", j.epochEnv(), "", "mkfs.vfat", "--invariant", "-i", fmt.Sprintf("%08x", layout.ImageID), "-F", "32", "-s", "1", "-n", layout.BootLabel,
		"-h", fmt.Sprint(layout.Start/layout.Sector), "-C", fat, fmt.Sprint(layout.BootSize/1024)); err != nil {
		return err
	}
	// One by one in a fixed order: mcopy of a folder uses the order on disk.
	if err := each(j.fat, func(rel string, info fs.FileInfo) error {
		if info.IsDir() {
			return runIn("", j.epochEnv(), "", "mmd", "-i", fat, "::/"+rel)
		}
		return runIn("", j.epochEnv(), "", "mcopy", "-m", "-i", fat, filepath.Join(j.fat, rel), "::/"+rel)
	}); err != nil {
		return err
	}
	if j.arch != "amd64" {
		return nil
	}
	return runIn("", j.epochEnv(), "", filepath.Join(j.work, biosProgram), "--directory", "/syslinux", "--install", fat)
}

// What makes a disk start on a PC without UEFI, in the work folder: the pinned package's, not the build host's.
const (
	biosProgram = "syslinux"   // has its loader inside, and installs it into a partition
	biosCode    = "gptmbr.bin" // for the disk's first sector
)

// bios takes syslinux out of the root, where nothing needs it. Its copyright file stays.
func (j *job) bios() error {
	if j.arch != "amd64" {
		return nil
	}
	return errors.Join(copyFile(j.in("usr/bin/syslinux"), filepath.Join(j.work, biosProgram), 0o755), copyFile(j.in("usr/lib/SYSLINUX/gptmbr.bin"), filepath.Join(j.work, biosCode), 0o644),
		j.removeAll("usr/bin/syslinux", "usr/lib/SYSLINUX"))
}

// makeData makes the data partition, empty and small. Its block size is that of a large file system, because it grows
// to the disk's end on the device. Its checksums do not depend on its identity, so that this can be changed in the
// superblock alone (flash).
func (j *job) makeData() error {
	data := filepath.Join(j.work, "data.ext4")
	os.Remove(data)
	return runIn("", j.epochEnv(), "", "mke2fs", "-q", "-t", "ext4", "-b", "4096", "-i", "16384", "-m", "1", "-J", "size=16", "-L", layout.DataLabel,
		"-U", "52495655-0000-4000-8000-0000000000da", "-E", "hash_seed=52495655-0000-4000-8000-0000000000db,lazy_itable_init=1,root_owner=0:0", "-O", "metadata_csum,metadata_csum_seed,^orphan_file",
		data, fmt.Sprintf("%dk", layout.DataSize/1024))
}
