package flash

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/diskfs/go-diskfs/filesystem"
)

// Each disk that is written gets other identities than the image and than the disk before, and the kernel's command line
// on it names its own.
func TestEachDiskGetsItsOwnIdentity(t *testing.T) {
	part := bootFAT(t)
	f, start := partitioned(t, part, false)
	const entry = "loader/entries/rivulet-a.conf"
	if err := onFAT(f, start, int64(len(part)), true, func(v filesystem.FileSystem) error {
		return writeFAT(v, entry, []byte("title a\noptions rivulet.slot=a quiet\n"))
	}); err != nil {
		t.Fatal(err)
	}
	raw := read(t, f.Name())
	seen := map[string]bool{string(raw[440:444]): true, string(raw[start+67 : start+71]): true}
	dir := t.TempDir()
	m, err := Open(t.Context(), lay(t, dir, raw, true), ours, quiet)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d, _ := card(t, dir, len(raw))
		if _, err := Write(t.Context(), m, d, map[string][]byte{ConfigName: []byte("name: lab-1\n")}, quiet); err != nil {
			t.Fatal(err)
		}
		now := read(t, d.Path)
		for _, id := range [][]byte{now[440:444], now[start+67 : start+71]} {
			if seen[string(id)] {
				t.Errorf("the identity %x is there twice", id)
			}
			seen[string(id)] = true
		}
		if copied := start + 6*sector; !bytes.Equal(now[copied+67:copied+71], now[start+67:start+71]) {
			t.Error("the copy of the first sector has another identity")
		}
		disk, err := os.Open(d.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer disk.Close()
		got := files(t, disk, start, int64(len(part)))
		word := regexp.MustCompile(`^title a\noptions rivulet.slot=a quiet rivulet.disk=([0-9A-F]{2})([0-9A-F]{2})-([0-9A-F]{2})([0-9A-F]{2})\n$`).FindStringSubmatch(got["/"+entry])
		if word == nil || got["/"+ConfigName] != "name: lab-1\n" {
			t.Fatalf("%q, %q", got["/"+entry], got["/"+ConfigName])
		}
		for i, b := range []byte{now[start+70], now[start+69], now[start+68], now[start+67]} {
			if want := []byte("0123456789ABCDEF"); word[i+1] != string([]byte{want[b>>4], want[b&15]}) {
				t.Errorf("the command line says %v, the file system %x", word[1:], now[start+67:start+71])
			}
		}
		wholeFAT(t, disk, start, len(part))
		if err := os.Remove(filepath.Join(dir, "card")); err != nil {
			t.Fatal(err)
		}
	}
}

// An image without a place for the word is not given an identity that its kernel would not find.
func TestAnImageWithoutACommandLine(t *testing.T) {
	f, start := partitioned(t, bootFAT(t), true)
	before := make([]byte, sector)
	if _, err := f.ReadAt(before, start); err != nil {
		t.Fatal(err)
	}
	if err := Identify(f); err == nil {
		t.Error("no error")
	}
}
