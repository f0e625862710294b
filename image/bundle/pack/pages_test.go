package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// program makes the head of an ELF file with one segment of code at 0 and the given one.
func program(t *testing.T, machine elf.Machine, second elf.Prog64) []byte {
	t.Helper()
	head := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 2}
	copy(head.Ident[:], elf.ELFMAG+string([]byte{byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}))
	var out bytes.Buffer
	for _, part := range []any{head, elf.Prog64{Type: uint32(elf.PT_LOAD), Align: 64 << 10}, second} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func TestPages(t *testing.T) {
	load := func(off, address, align uint64) elf.Prog64 {
		return elf.Prog64{Type: uint32(elf.PT_LOAD), Off: off, Vaddr: address, Align: align}
	}
	for _, tc := range []struct {
		name    string
		content []byte
		want    string // in the error, "" for none
	}{
		{"no program", []byte("GPL"), ""},
		{"64 kB", program(t, elf.EM_AARCH64, load(0xfef0, 0x1fef0, 0x10000)), ""},
		{"more", program(t, elf.EM_AARCH64, load(0x20010, 0x240010, 0x20000)), ""},
		{"4 kB", program(t, elf.EM_AARCH64, load(0xef0, 0x1ef0, 0x1000)), "offset 0xef0, address 0x1ef0, alignment 0x1000"},
		{"16 kB", program(t, elf.EM_AARCH64, load(0x3ef0, 0x7ef0, 0x4000)), "alignment 0x4000"},
		{"4 kB that happens to fit", program(t, elf.EM_AARCH64, load(0xef0, 0x10ef0, 0x1000)), "alignment 0x1000"},
		{"64 kB said only", program(t, elf.EM_AARCH64, load(0xef0, 0x1ef0, 0x10000)), "max-page-size=65536"},
		{"no alignment", program(t, elf.EM_AARCH64, load(0, 0, 0)), "alignment 0x0"},
		{"zeros only", program(t, elf.EM_AARCH64, elf.Prog64{Type: uint32(elf.PT_LOAD), Off: 0xffe8, Vaddr: 0x41ffe8, Memsz: 0x5080, Align: 0x10000}), "has no content"},
		{"another segment", program(t, elf.EM_AARCH64, elf.Prog64{Type: uint32(elf.PT_NOTE), Off: 0xb0, Vaddr: 0x1b0, Align: 4}), ""},
		{"another architecture", program(t, elf.EM_X86_64, load(0xef0, 0x1ef0, 0x1000)), ""},
		{"half a file", program(t, elf.EM_AARCH64, load(0xef0, 0x1ef0, 0x1000))[:100], "EOF"},
	} {
		err := anyPage(tc.content)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

// Whatever goes into a bundle is looked at: programs, libraries, the program of pods' first container, gateways.
func TestNothingWithSmallPagesIsPacked(t *testing.T) {
	small := program(t, elf.EM_AARCH64, elf.Prog64{Type: uint32(elf.PT_LOAD), Off: 0xef0, Vaddr: 0x1ef0, Align: 0x1000})
	for _, name := range []string{"runc", "cni", "pause", "xtables", "libm.so.6", "netfilter/lib/libxt_NAT.so", "gateway"} {
		dir := helpers(t)
		if err := os.WriteFile(filepath.Join(dir, "gateway"), nil, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), small, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := collect("arm64", dir, []string{filepath.Join(dir, "gateway")}); err == nil || !strings.Contains(err.Error(), name+": the segment at") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
