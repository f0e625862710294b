package card

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"

	"github.com/klauspost/compress/zstd"
)

// kernel checks that the firmware can start it: a plain Image for arm64, or one in gzip. (A kernel that UEFI's services
// decompress is neither.)
func (p *problems) kernel(name string, raw []byte) {
	image, err := unpacked(raw)
	if err != nil {
		p.add("%s: %v", name, err)
		return
	}
	if len(image) < 64 || string(image[56:60]) != "ARM\x64" {
		p.add("%s is no Image of a kernel for arm64: it begins with % x", name, image[:min(16, len(image))])
		return
	}
	size, flags := binary.LittleEndian.Uint64(image[16:]), binary.LittleEndian.Uint64(image[24:])
	if size < uint64(len(image)) || size > 128<<20 {
		p.add("%s says that it needs %d bytes, and has %d", name, size, len(image))
	}
	if flags&1 != 0 || flags>>1&3 != 1 {
		p.add("%s is for big-endian machines or for pages of more than 4 kB (flags %x)", name, flags)
	}
}

func unpacked(raw []byte) ([]byte, error) {
	if !bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		return raw, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// initrd checks that the kernel finds an init in it, and a busybox for the processor. It returns the content.
func (p *problems) initrd(name string, raw []byte) map[string][]byte {
	z, err := zstd.NewReader(bytes.NewReader(raw))
	if err != nil {
		p.add("%s: %v", name, err)
		return nil
	}
	defer z.Close()
	archive, err := io.ReadAll(z)
	if err != nil {
		p.add("%s: %v", name, err)
		return nil
	}
	files, err := cpio(archive)
	if err != nil {
		p.add("%s: %v", name, err)
		return nil
	}
	if !bytes.HasPrefix(files["init"], []byte("#!/bin/sh\n")) {
		p.add("%s: no script init", name)
	}
	if b, err := elf.NewFile(bytes.NewReader(files["bin/busybox"])); err != nil || b.Machine != elf.EM_AARCH64 {
		p.add("%s: bin/busybox is not for arm64 (%v)", name, err)
	}
	return files
}

// cpio reads the files of an initrd archive.
func cpio(raw []byte) (map[string][]byte, error) {
	all := map[string][]byte{}
	aligned := func(n int) int { return (n + 3) &^ 3 }
	for at := 0; at+110 <= len(raw); {
		field := func(i int) int {
			n, err := strconv.ParseUint(string(raw[at+6+8*i:at+14+8*i]), 16, 31)
			if err != nil {
				return -1
			}
			return int(n)
		}
		size, length := field(6), field(11)
		begin := aligned(at + 110 + length)
		if string(raw[at:at+6]) != "070701" || size < 0 || length < 1 || begin+size > len(raw) {
			return nil, fmt.Errorf("no archive that a kernel unpacks, at %d", at)
		}
		name := string(raw[at+110 : at+109+length])
		if name == "TRAILER!!!" {
			return all, nil
		}
		all[name] = raw[begin : begin+size]
		at = aligned(begin + size)
	}
	return nil, fmt.Errorf("an archive without an end")
}
