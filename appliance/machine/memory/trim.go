package memory

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/fabric/changes"
)

// A process trims itself first after a quick start, soon again for a slow board, and later from time to time, to
// release what was used once, for a new peer or pod.
const (
	firstTrim = time.Minute
	lastTrim  = 10 * time.Minute
)

// KeepTrimmed calls Trim until ctx ends or a Trim fails: the kernel would refuse it again, and a failure costs memory
// only.
func KeepTrimmed(ctx context.Context) {
	for wait := firstTrim; ; wait = min(2*wait, lastTrim) {
		if !changes.Wait(ctx, wait) {
			return
		}
		if Trim() != nil {
			return
		}
	}
}

// Trim releases the mapped pages of this program's file: code and tables that only the start used, and neighbours that
// the kernel maps with them. They stay in the page cache while there is room, and are mapped again at the next access,
// but the kernel may use the memory otherwise. With an ELF of 220 MB these are most of the process's mapped pages.
//
// It releases only segments that are never written according to the ELF: a written page would lose its content.
func Trim() error {
	path := "/proc/self/exe"
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	defer f.Close()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	exe, err := os.Readlink(path)
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	for _, m := range mappings(string(maps), exe) {
		if written(f, m) {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("memory: madvise: %w", errno)
		}
	}
	return nil
}

// mapping is a range of addresses, without its end.
type mapping struct{ from, to uintptr }

// mappings finds in /proc/PID/maps text where a file is mapped without write permission. The name of a replaced file
// ends in " (deleted)", in the link as well.
func mappings(maps, file string) (out []mapping) {
	for line := range strings.Lines(maps) {
		f := strings.SplitN(strings.TrimRight(line, "\n"), " ", 6)
		if len(f) < 6 || strings.TrimLeft(f[5], " ") != file || f[1] != "r-xp" && f[1] != "r--p" {
			continue
		}
		var m mapping
		if n, err := fmt.Sscanf(f[0], "%x-%x", &m.from, &m.to); err == nil && n == 2 {
			out = append(out, m)
		}
	}
	return out
}

// written reports whether the mapping may have been written: the C library fills in the beginning of the writable
// segment and then removes the permission. A program at other addresses than in the file is not trimmed.
func written(f *elf.File, m mapping) bool {
	if f.Type != elf.ET_EXEC {
		return true
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_W != 0 && uintptr(p.Vaddr) < m.to && m.from < uintptr(p.Vaddr+p.Memsz) {
			return true
		}
	}
	return false
}
