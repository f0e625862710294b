package flash

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
	"github.com/klauspost/compress/zstd"
)

// bootFAT is a boot partition as mkfs.fat and mcopy make it, with files of 700 bytes.
func bootFAT(t *testing.T) []byte {
	t.Helper()
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	raw, err := z.DecodeAll(read(t, "testdata/boot.fat.zst"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// disk puts a partition on a disk with an MBR or a GPT.
func partitioned(t *testing.T, part []byte, gpt bool) (*os.File, int64) {
	t.Helper()
	const start = 1 << 20
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	b, le := make([]byte, 3*sector), binary.LittleEndian
	b[510], b[511], b[446+4] = 0x55, 0xaa, 0x0c
	le.PutUint32(b[446+8:], start/sector)
	le.PutUint32(b[446+12:], uint32(len(part)/sector))
	if gpt {
		b[446+4] = 0xee
		le.PutUint32(b[446+8:], 1)
		copy(b[sector:], "EFI PART")
		le.PutUint64(b[sector+72:], 2)
		le.PutUint64(b[2*sector+32:], start/sector)
		le.PutUint64(b[2*sector+40:], uint64(start/sector+len(part)/sector-1))
	}
	for at, content := range map[int64][]byte{0: b, start: part} {
		if _, err := f.WriteAt(content, at); err != nil {
			t.Fatal(err)
		}
	}
	return f, start
}

// files reads all files of a FAT, by another way than they were written.
func files(t *testing.T, f *os.File, start, size int64) map[string]string {
	t.Helper()
	v, err := fat32.Read(file.New(f, true), size, start, sector)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	walk(t, v, "/", out)
	return out
}

func walk(t *testing.T, v filesystem.FileSystem, dir string, out map[string]string) {
	entries, err := v.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		switch {
		case e.Name() == "." || e.Name() == ".." || strings.HasPrefix(e.Name(), "RVBOOT"):
		case e.IsDir():
			walk(t, v, name, out)
		default:
			in, err := v.OpenFile(name, os.O_RDONLY)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := io.ReadAll(in)
			if err != nil {
				t.Fatal(err)
			}
			out[strings.ToLower(name)] = string(raw)
		}
	}
}

// Placed once, over a longer and over a shorter one: it is there, nothing else has
// changed, and the file system is whole.
func TestPlace(t *testing.T) {
	part := bootFAT(t)
	for _, gpt := range []bool{false, true} {
		f, start := partitioned(t, part, gpt)
		want := files(t, f, start, int64(len(part)))
		if len(want) < 10 {
			t.Fatalf("the fixture has %d files", len(want))
		}
		for _, n := range []int{40, 513, MaxConfig, 9} {
			content := bytes.Repeat([]byte("name: lab-1\n"), n)[:n]
			sign := bytes.Repeat([]byte("EAP-Method=PEAP\n"), n)[:n]
			placed := map[string][]byte{ConfigName: content, "network/eduroam.8021x": sign, "network/10-a-long-name-of-a.network": content}
			if err := Place(f, placed); err != nil {
				t.Fatalf("%d bytes: %v", n, err)
			}
			for name, c := range placed {
				want["/"+name] = string(c)
			}
			got := files(t, f, start, int64(len(part)))
			for name, c := range want {
				if got[name] != c {
					t.Errorf("%d bytes: %s has %d bytes, not %d", n, name, len(got[name]), len(c))
				}
			}
			if len(got) != len(want) {
				t.Errorf("%d bytes: %d files, not %d", n, len(got), len(want))
			}
		}
		wholeFAT(t, f, start, len(part))
	}
}

// wholeFAT asks the file system's own checker, where it is installed.
func wholeFAT(t *testing.T, f *os.File, start int64, size int) {
	t.Helper()
	fsck, err := exec.LookPath("fsck.fat")
	if err != nil {
		return
	}
	raw := make([]byte, size)
	if _, err := f.ReadAt(raw, start); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "part")
	put(t, name, raw)
	if out, err := exec.Command(fsck, "-n", name).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestPlaceWhereItCannotBe(t *testing.T) {
	part := bootFAT(t)
	noFAT, _ := partitioned(t, make([]byte, 1<<20), true)
	noTable, _ := partitioned(t, part[:1<<20], false)
	if _, err := noTable.WriteAt(make([]byte, sector), 0); err != nil {
		t.Fatal(err)
	}
	broken := bytes.Clone(part)
	clear(broken[sector:]) // a boot sector, and nothing behind it
	damaged, _ := partitioned(t, broken, true)
	for want, f := range map[string]*os.File{"not FAT32": noFAT, "no partition table": noTable, "flash: the image is on the disk": damaged} {
		if err := Place(f, map[string][]byte{ConfigName: []byte("name: x\n")}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "copy it by hand") {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if err := Place(noFAT, map[string][]byte{ConfigName: nil}); err == nil {
		t.Error("an empty file is placed")
	}
}
