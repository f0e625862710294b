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

// A process trims itself first when a quick start is over, soon again because a
// slow board is not done by then, and later now and then: what was used once, for
// a peer that came or a pod that was made, is given back too.
const (
	firstTrim = time.Minute
	lastTrim  = 10 * time.Minute
)

// KeepTrimmed calls Trim until ctx ends. A trim that fails is the last one: the
// kernel will not think otherwise next time, and nothing but memory is lost.
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

// Trim lets go of the pages of this program's own file that the process has
// mapped: code and tables that only the start used, and their neighbours, which
// the kernel maps along. They stay in the page cache as long as there is room, and
// what is still needed is mapped again at the next touch; but the kernel may now
// take the rest for something better. On an ELF of 220 MB that is most of what the
// process had mapped.
//
// Only segments that the ELF itself says are never written are touched: dropping a
// page that was written would lose what was written.
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

// mapping is a range of the process's addresses, the end not in it.
type mapping struct{ from, to uintptr }

// mappings finds in /proc/PID/maps text where a file is mapped without the right
// to write. A file that was replaced since has " (deleted)" after its name, in
// the link as well.
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

// written reports whether the mapping may hold what was written after all: the C
// library fills in the beginning of the writable segment and then takes the right
// away. A program whose addresses are not those of the file is left alone.
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
