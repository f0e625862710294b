// Package card checks an image for the Raspberry Pi as the chip's boot ROM and firmware will read it, before any kernel
// runs: the partition table, the firmware's own files, config.txt and the files it names, kernel, initrd and a device
// tree for each board. It reads the image and writes nothing. Each problem is one line that names the file; the builder
// refuses to publish an image that has one.
package card

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
	"github.com/diskfs/go-diskfs/partition/mbr"

	"rivulet/image/device/layout"
)

// Files are those of the boot partition, by path.
type Files map[string][]byte

type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

// Image reads an uncompressed image. found are problems of its content; the error is that it could not be read.
func Image(name string) (files Files, found []string, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	var p problems
	p.table(f, info.Size())
	boot, err := fat32.Read(file.New(f, true), layout.BootSize, layout.Start, layout.Sector)
	if err != nil {
		return nil, nil, fmt.Errorf("the boot partition of %s: %w; make image once more", name, err)
	}
	if label := boot.Label(); label != layout.BootLabel {
		p.add("the boot partition is called %q, rivulet flash looks for %s", label, layout.BootLabel)
	}
	files = Files{}
	if err := files.read(boot, "/"); err != nil {
		return nil, nil, fmt.Errorf("the boot partition of %s: %w; make image once more", name, err)
	}
	p = append(p, Check(files)...)
	slices.Sort(p)
	return files, p, nil
}

// Check returns the problems of a boot partition's files.
func Check(files Files) []string {
	var p problems
	p.files(files)
	slices.Sort(p)
	return p
}

// table checks the requirements of the Raspberry Pi 3's boot ROM: an MBR whose first partition is FAT. The initrd uses
// the other partitions.
func (p *problems) table(f fs.File, size int64) {
	t, err := mbr.Read(f.(*os.File), layout.Sector, layout.Sector)
	if err != nil {
		p.add("partition table: %v", err)
		return
	}
	at := int64(layout.Start)
	want := []struct {
		kind mbr.Type
		size int64
	}{{mbr.Fat32LBA, layout.BootSize}, {mbr.Linux, layout.RootSize}, {mbr.Linux, layout.RootSize}, {mbr.Linux, layout.DataSize}}
	if len(t.Partitions) != len(want) {
		p.add("partition table: %d partitions, not %d", len(t.Partitions), len(want))
		return
	}
	for i, part := range t.Partitions {
		begin, length := int64(part.Start)*layout.Sector, int64(part.Size)*layout.Sector
		if part.Type != want[i].kind || begin != at || length != want[i].size || part.Bootable != (i == 0) {
			p.add("partition %d: type %x, from %d, %d bytes, bootable %v; it is to be type %x, from %d, %d bytes", i+1, part.Type, begin, length, part.Bootable, want[i].kind, at, want[i].size)
		}
		if begin%(4*layout.MiB) != 0 {
			p.add("partition %d begins at %d, which cuts a block of 4 MB that a card erases at once", i+1, begin)
		}
		at += want[i].size
	}
	if at > size {
		p.add("the partitions end at %d, the image at %d", at, size)
	}
}

func (f Files) read(boot *fat32.FileSystem, dir string) error {
	entries, err := boot.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if e.IsDir() {
			if e.Name() != "." && e.Name() != ".." {
				if err := f.read(boot, name); err != nil {
					return err
				}
			}
			continue
		}
		if e.Size() == 0 { // the library cannot open it
			f[name[1:]] = nil
			continue
		}
		in, err := boot.OpenFile(name, os.O_RDONLY)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		raw, err := io.ReadAll(in)
		in.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		f[name[1:]] = raw
	}
	return nil
}

// videoCore is the firmware's processor in an ELF header.
const videoCore = 137

// files checks the content of the boot partition.
func (p *problems) files(f Files) {
	// The boot ROM of the 3 loads bootcode.bin, the EEPROM of the 4 start4.elf. The 5 has both in its EEPROM.
	for _, name := range []string{"bootcode.bin", "fixup.dat", "fixup4.dat"} {
		if len(f[name]) < 1024 {
			p.add("%s: %d bytes, the firmware's has more", name, len(f[name]))
		}
	}
	if n := len(f["bootcode.bin"]); n > 128<<10 {
		p.add("bootcode.bin: %d bytes, the cache that it is loaded into has 128 kB", n)
	}
	for _, name := range []string{"start.elf", "start4.elf"} {
		if raw := f[name]; len(raw) < 64 || !bytes.HasPrefix(raw, []byte("\x7fELF")) || binary.LittleEndian.Uint16(raw[18:]) != videoCore {
			p.add("%s is no firmware for the Raspberry Pi", name)
		}
	}
	if raw, ok := f["rivulet.yaml"]; ok {
		p.add("rivulet.yaml is on it (%d bytes): every device would read the same", len(raw))
	}
	slot, err := layout.DecodeChoice(f[layout.ChoiceFile])
	if err != nil || len(f[layout.ChoiceFile]) != layout.Sector {
		p.add("%s: %d bytes, %v", layout.ChoiceFile, len(f[layout.ChoiceFile]), err)
	}
	c := p.config(f)
	p.command(f, c, slot.Load)
	p.kernel(c.prefix+c.kernel, f[c.prefix+c.kernel])
	initrd := p.initrd(c.prefix+c.initrd, f[c.prefix+c.initrd])
	p.boards(f, c.prefix, drivers(initrd))
	p.room(f)
}

// room checks the free space for the slot of the first update: 1.5 times the size of the first slot, because kernels
// grow.
func (p *problems) room(f Files) {
	used := 0
	for name, raw := range f {
		if dir, _ := path.Split(name); dir != "" {
			used += len(raw) * 3 / 2
		}
		used += len(raw)
	}
	if used > layout.BootSize {
		p.add("the boot partition: with the second slot it would hold %d MB of %d", used>>20, layout.BootSize>>20)
	}
}
