package memory

import (
	"debug/elf"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

func TestMappings(t *testing.T) {
	const maps = `00400000-00764000 r-xp 00000000 fe:00 885578                             /opt/a b/rivulet (deleted)
00764000-00b0d000 r--p 00364000 fe:00 885578                             /opt/a b/rivulet (deleted)
00b0d000-00b5d000 rw-p 0070d000 fe:00 885578                             /opt/a b/rivulet (deleted)
00b5d000-02b9f000 rw-p 00000000 00:00 0 
7f9c1010e000-7f9c10400000 r--s 00000000 fe:00 77 /opt/a b/rivulet (deleted)
7f9c1010e000-7f9c10400000 r--p 00000000 fe:00 77 /usr/lib/libc.so.6
7ffd7a7f1000-7ffd7a7f3000 r-xp 00000000 00:00 0                          [vdso]
`
	want := []mapping{{0x400000, 0x764000}, {0x764000, 0xb0d000}}
	if got := mappings(maps, "/opt/a b/rivulet (deleted)"); !reflect.DeepEqual(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestWhatWasWrittenIsKept(t *testing.T) {
	load := func(flags elf.ProgFlag, from, size uint64) *elf.Prog {
		return &elf.Prog{ProgHeader: elf.ProgHeader{Type: elf.PT_LOAD, Flags: flags, Vaddr: from, Memsz: size}}
	}
	f := &elf.File{FileHeader: elf.FileHeader{Type: elf.ET_EXEC},
		Progs: []*elf.Prog{load(elf.PF_R|elf.PF_X, 0x400000, 0x5000), load(elf.PF_R, 0x405000, 0x2cb8), load(elf.PF_R|elf.PF_W, 0x4094d0, 0x9000)}}
	for _, c := range []struct {
		what string
		m    mapping
		want bool
	}{
		{"code", mapping{0x400000, 0x405000}, false},
		{"tables before the data", mapping{0x405000, 0x408000}, false},
		{"what the C library filled in and then closed", mapping{0x409000, 0x40e000}, true},
	} {
		if got := written(f, c.m); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
	f.Type = elf.ET_DYN
	if !written(f, mapping{0x400000, 0x405000}) {
		t.Error("a program that was moved is not left alone")
	}
}

// The process goes on as before, and less of its file is mapped.
func TestTrim(t *testing.T) {
	before := fileRSS(t)
	if err := Trim(); err != nil {
		t.Fatal(err)
	}
	after := fileRSS(t)
	t.Logf("mapped of the file: %d kB before, %d kB after", before, after)
	if after >= before {
		t.Error("nothing was given back")
	}
	runtime.GC()
	if reflect.TypeFor[Plan]().NumField() < 4 || For(1).Tunnel != 32*MiB {
		t.Error("tables of the program are not what they were")
	}
}

// fileRSS is what the process has mapped of files, kB.
func fileRSS(t *testing.T) (kB int) {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if n, _ := fmt.Sscanf(line, "RssFile: %d kB", &kB); n == 1 {
			return kB
		}
	}
	t.Fatal("no RssFile")
	return 0
}
