package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
)

// page is the largest page, in bytes, of a kernel for arm64. A Raspberry Pi 5 has 16 kB.
const page = 64 << 10

// read returns a file's content. It refuses a program or library for arm64 that some kernels do not load.
func read(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := anyPage(content); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return content, nil
}

// anyPage returns an error if the content is an ELF file for arm64 and has a segment that a kernel or loader refuses:
// with pages of 64 kB those with alignment below a page, or offset and address that differ within a page; on
// older kernels, as 5.10, those without content (only .bss), which the linker puts behind the end of the file.
func anyPage(content []byte) error {
	if !bytes.HasPrefix(content, []byte(elf.ELFMAG)) {
		return nil
	}
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return err
	}
	if f.Machine != elf.EM_AARCH64 {
		return nil
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Filesz == 0 && p.Memsz > 0 {
			return fmt.Errorf("the segment at address %#x has no content: older kernels do not start it; use the stack, or give .data something", p.Vaddr)
		}
		if p.Type == elf.PT_LOAD && (p.Align%page != 0 || p.Align == 0 || p.Off%page != p.Vaddr%page) {
			return fmt.Errorf("the segment at offset %#x, address %#x, alignment %#x does not load with pages of 64 kB: link it with -z max-page-size=65536",
				p.Off, p.Vaddr, p.Align)
		}
	}
	return nil
}
