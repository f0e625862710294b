package flash

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"rivulet/image/signed"
)

var (
	root   = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	signer = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, 32))
	ours   = Trust{Trust: signed.Trust{Roots: []ed25519.PublicKey{root.Public().(ed25519.PublicKey)}, Oldest: 1}}
)

func quiet(Stage, int64, int64) {}

// lay is an image in a folder, with all that may lie beside it.
func lay(t testing.TB, dir string, raw []byte, compressed bool) string {
	t.Helper()
	name, content := filepath.Join(dir, "device.img"), raw
	if compressed {
		name += ".zst"
		z, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		content = z.EncodeAll(raw, nil)
	}
	put(t, name, content)
	d := signed.NewDigest()
	d.Write(raw)
	sig, err := json.Marshal(signed.Sign(signer, signed.Certify(root, signer.Public().(ed25519.PublicKey), 1), d))
	if err != nil {
		t.Fatal(err)
	}
	put(t, name+".sig", sig)
	return name
}

func put(t testing.TB, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

const block = 4096

// mapOf writes a bmap of the blocks of raw that are not zeros.
func mapOf(raw []byte) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "<?xml version=\"1.0\" ?>\n<bmap version=\"2.0\">\n<ImageSize> %d </ImageSize>\n<BlockSize> %d </BlockSize>\n<ChecksumType> sha256 </ChecksumType>\n<BlockMap>\n", len(raw), block)
	for at := 0; at < len(raw); {
		to := at
		for to < len(raw) && !zeros(raw[to:min(to+block, len(raw))]) {
			to += block
		}
		if to > at {
			fmt.Fprintf(&b, "<Range chksum=\"%x\"> %d-%d </Range>\n", sha256.Sum256(raw[at:min(to, len(raw))]), at/block, to/block-1)
		}
		at = to + block
	}
	b.WriteString("</BlockMap>\n</bmap>\n")
	return []byte(b.String())
}

// sparse is an image with content here and there.
func sparse(size int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	raw := make([]byte, size)
	raw[510], raw[511] = 0x55, 0xaa
	for range 6 {
		at := r.IntN(size - 9000)
		for i := at; i < at+9000; i++ {
			raw[i] = byte(r.Uint32())
		}
	}
	return raw
}

// a card is full of what was on it before.
func card(t testing.TB, dir string, size int) (Disk, []byte) {
	t.Helper()
	name := filepath.Join(dir, "card")
	old := bytes.Repeat([]byte("holiday "), size/8)
	put(t, name, old)
	d, err := Machine{}.Disk(name)
	if err != nil {
		t.Fatal(err)
	}
	return d, old
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// Whatever the image and whatever its map: what it has content in is on the disk, and
// what it has none in is left alone, but for the old partition tables.
func TestWhatIsWrittenIsTheImage(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		size := rapid.IntRange(40, 6000).Draw(rt, "sectors") * sector
		raw := sparse(size, rapid.Uint64().Draw(rt, "seed"))
		path := lay(t, dir, raw, rapid.Bool().Draw(rt, "compressed"))
		mapped := rapid.Bool().Draw(rt, "map")
		if mapped {
			put(t, path+".bmap", mapOf(raw))
		}
		d, old := card(t, dir, size+rapid.IntRange(0, 3<<20).Draw(rt, "spare")/8*8)
		m, err := Open(t.Context(), path, ours, quiet)
		if err != nil {
			rt.Fatal(err)
		}
		r, err := Write(t.Context(), m, d, nil, quiet)
		if err != nil {
			rt.Fatal(err)
		}
		now := read(t, d.Path)
		for at := 0; at < size; at += block {
			to := min(at+block, size)
			if want := raw[at:to]; !bytes.Equal(now[at:to], want) && (!mapped || !zeros(want) || !bytes.Equal(now[at:to], old[at:to])) {
				rt.Fatalf("block at %d is neither the image's nor left alone", at)
			}
		}
		if tail := now[size:]; !zeros(tail[:min(head, len(tail))]) || len(tail) > 0 && !zeros(now[max(size, len(now)-head):]) {
			rt.Fatal("what lay behind the image could be taken for a file system or a partition table")
		}
		if len(now) != len(old) || !mapped && r.Written != int64(size) || mapped && size > 16*9000 && r.Written >= int64(size) {
			rt.Fatalf("card %d → %d, written %d of %d", len(old), len(now), r.Written, size)
		}
	})
}

// Everything that is wrong with an image is found before the disk is touched.
func TestBadImages(t *testing.T) {
	raw := sparse(2<<20, 7)
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, path string)
		trust Trust
		want  string
	}{
		"no signature":           {func(t *testing.T, p string) { os.Remove(p + ".sig") }, ours, "--unsigned"},
		"signature of another":   {func(t *testing.T, p string) { put(t, p+".sig", read(t, lay(t, t.TempDir(), raw[:1<<20], true)+".sig")) }, ours, "damaged or was changed"},
		"signature is no JSON":   {func(t *testing.T, p string) { put(t, p+".sig", []byte("x")) }, ours, "copy the .sig file once more"},
		"nobody vouches":         {func(*testing.T, string) {}, Trust{Trust: signed.Trust{Roots: []ed25519.PublicKey{signer.Public().(ed25519.PublicKey)}}}, "nobody whom this rivulet trusts"},
		"a retired key":          {func(*testing.T, string) {}, Trust{Trust: ours.AtLeast(2)}, "was retired"},
		"no keys":                {func(*testing.T, string) {}, Trust{}, "ROOT_KEYS"},
		"no keys, bad and asked": {func(*testing.T, string) {}, Trust{Unsigned: true}, "ROOT_KEYS"},
		"cut short":              {func(t *testing.T, p string) { c := read(t, p); put(t, p, c[:len(c)/2]) }, ours, "get it once more"},
		"a bit changed":          {func(t *testing.T, p string) { c := read(t, p); c[len(c)/2] ^= 1; put(t, p, c) }, ours, "get it once more"},
		"not compressed":         {func(t *testing.T, p string) { put(t, p, raw) }, ours, "not compressed with zstd"},
		"empty":                  {func(t *testing.T, p string) { put(t, p, nil) }, ours, "get it once more"},
		"not there":              {func(t *testing.T, p string) { os.Remove(p) }, ours, "name the file of an image"},
		"a folder":               {func(t *testing.T, p string) { os.Remove(p); _ = os.Mkdir(p, 0o755) }, ours, "the image comes first"},
		"map of another":         {func(t *testing.T, p string) { put(t, p+".bmap", mapOf(sparse(2<<20, 8))) }, ours, "does not belong to it"},
		"map of another size":    {func(t *testing.T, p string) { put(t, p+".bmap", mapOf(raw[:1<<20])) }, ours, "is of an image of"},
		"map is no XML":          {func(t *testing.T, p string) { put(t, p+".bmap", []byte("<bmap")) }, ours, "or remove it"},
		"map that leaves out": {func(t *testing.T, p string) {
			c := mapOf(raw)
			put(t, p+".bmap", append(c[:bytes.LastIndex(c, []byte("<Range"))], "</BlockMap></bmap>"...))
		}, ours, "leaves out content"},
		"odd size": {func(t *testing.T, p string) {
			dir := t.TempDir()
			odd := lay(t, dir, raw[:1000], true)
			put(t, p, read(t, odd))
			put(t, p+".sig", read(t, odd+".sig"))
		}, ours, "cut short or no image"},
	} {
		t.Run(name, func(t *testing.T) {
			path := lay(t, t.TempDir(), raw, true)
			tc.spoil(t, path)
			_, err := Open(t.Context(), path, tc.trust, quiet)
			if !errors.Is(err, ErrImage) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("%v; want %q", err, tc.want)
			}
		})
	}
}

// Without a signature, and asked to: the map's checksums still hold.
func TestUnsigned(t *testing.T) {
	raw := sparse(2<<20, 3)
	path := lay(t, t.TempDir(), raw, false)
	os.Remove(path + ".sig")
	put(t, path+".bmap", mapOf(raw))
	if m, err := Open(t.Context(), path, Trust{Unsigned: true}, quiet); err != nil || m.Signed {
		t.Fatalf("%+v %v", m, err)
	}
	at := bytes.IndexFunc(raw[1024:], func(r rune) bool { return r != 0 }) + 1024
	raw[at] ^= 0xff
	put(t, path, raw)
	if _, err := Open(t.Context(), path, Trust{Unsigned: true}, quiet); !errors.Is(err, ErrImage) {
		t.Fatalf("a changed image is taken: %v", err)
	}
}

func TestTooSmallAndItself(t *testing.T) {
	raw := sparse(2<<20, 5)
	dir := t.TempDir()
	m, err := Open(t.Context(), lay(t, dir, raw, false), ours, quiet)
	if err != nil {
		t.Fatal(err)
	}
	d, old := card(t, dir, 1<<20)
	if _, err := Write(t.Context(), m, d, nil, quiet); !errors.Is(err, ErrDisk) || !strings.Contains(err.Error(), "use a larger one") {
		t.Errorf("too small: %v", err)
	}
	if !bytes.Equal(read(t, d.Path), old) {
		t.Error("it was written to")
	}
	self, err := Machine{}.Disk(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Write(t.Context(), m, self, nil, quiet); !errors.Is(err, ErrDisk) || !bytes.Equal(read(t, m.Path), raw) {
		t.Errorf("the image is written to itself: %v", err)
	}
}

// Stopped half way, or with the image swapped under it: the disk has no partition
// table, and the error says so.
func TestStoppedHalfWay(t *testing.T) {
	raw := sparse(24<<20, 9)
	for name, spoil := range map[string]func(cancel func(), path string){
		"stopped": func(cancel func(), _ string) { cancel() },
		"changed": func(_ func(), path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err == nil {
				_, err = f.WriteAt([]byte("evil"), 20<<20)
				f.Close()
			}
			if err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := lay(t, dir, raw, false)
			m, err := Open(t.Context(), path, ours, quiet)
			if err != nil {
				t.Fatal(err)
			}
			d, _ := card(t, dir, 32<<20)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err = Write(ctx, m, d, nil, func(s Stage, done, _ int64) {
				if s == Writing && done == 8<<20 {
					spoil(cancel, path)
				}
			})
			if !errors.Is(err, ErrHalf) {
				t.Fatalf("%v", err)
			}
			if !zeros(read(t, d.Path)[:head]) {
				t.Error("it has a partition table, and would start")
			}
		})
	}
}

// What the table of an image cannot reach of a disk is told; a GPT reaches all of it.
func TestATableThatDoesNotReach(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "disk")
	put(t, name, nil)
	const beyond = 3 << 30
	if err := os.Truncate(name, 2<<40+beyond); err != nil {
		t.Skipf("needs a file system with sparse files of 2 TiB: %v", err)
	}
	d, err := Machine{}.Disk(name)
	if err != nil {
		t.Fatal(err)
	}
	for table, want := range map[string]int64{"": beyond, "EFI PART": 0} {
		raw := sparse(1<<20, 1)
		copy(raw[sector-2:], "\x55\xaa"+table+strings.Repeat("\x00", 8-len(table)))
		m, err := Open(t.Context(), lay(t, dir, raw, true), ours, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := Write(t.Context(), m, d, nil, quiet); err != nil || r.Unused != want {
			t.Errorf("%q: %d are not used, want %d; %v", table, r.Unused, want, err)
		}
	}
}

// A card that loses what it was given is found out.
func TestReadBack(t *testing.T) {
	raw := sparse(8<<20, 11)
	dir := t.TempDir()
	m, err := Open(t.Context(), lay(t, dir, raw, false), ours, quiet)
	if err != nil {
		t.Fatal(err)
	}
	d, _ := card(t, dir, 8<<20)
	spoilt := false
	_, err = Write(t.Context(), m, d, nil, func(s Stage, done, _ int64) {
		if s == Writing && done == 8<<20 && !spoilt { // all but the head is written
			spoilt = true
			f, err := os.OpenFile(d.Path, os.O_RDWR, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte("worn out"), 5<<20); err != nil {
				t.Error(err)
			}
		}
	})
	if !spoilt || !errors.Is(err, ErrHalf) || !strings.Contains(err.Error(), "not what was written") {
		t.Fatalf("spoilt %v: %v", spoilt, err)
	}
}

func FuzzBmap(f *testing.F) {
	f.Add(string(mapOf(sparse(1<<20, 1))))
	f.Add("<bmap version=\"2.0\"><ImageSize>1</ImageSize><BlockSize>512</BlockSize><BlockMap><Range>0-9</Range></BlockMap></bmap>")
	f.Fuzz(func(t *testing.T, s string) {
		ranges, size, err := parseBmap(strings.NewReader(s))
		last := int64(0)
		for _, r := range ranges {
			if err == nil && (r.From < last || r.To <= r.From || r.To > size) {
				t.Fatalf("%+v of %d", ranges, size)
			}
			last = r.To
		}
	})
}
