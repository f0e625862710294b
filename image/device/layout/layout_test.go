package layout

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

func slot(t *rapid.T, name string) Slot { return rapid.SampledFrom([]Slot{A, B}).Draw(t, name) }

// What is written is read again, for both loaders, and is one sector.
func TestChoiceIsReadAsItIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Choice{Load: slot(t, "load"), Good: slot(t, "good"), Try: rapid.SampledFrom([]Slot{0, A, B}).Draw(t, "try"), Tries: rapid.IntRange(0, 9).Draw(t, "tries")}
		raw := c.Encode(rapid.SampledFrom([]Loader{Syslinux, PiFirmware}).Draw(t, "loader"))
		if len(raw) != Sector {
			t.Fatalf("%d bytes", len(raw))
		}
		if got, err := DecodeChoice(raw); err != nil || got != c {
			t.Fatalf("%+v, %v; want %+v", got, err, c)
		}
	})
}

// Anything else is refused and never half believed.
func TestWhatIsNoChoiceIsRefused(t *testing.T) {
	for _, text := range []string{"", "DEFAULT c\n# rivulet good=a try=- tries=0\n", "DEFAULT a\n", "DEFAULT a\n# rivulet good=a try=x tries=0\n", "# rivulet good=a try=- tries=0\n", string(make([]byte, Sector))} {
		if c, err := DecodeChoice([]byte(text)); err == nil {
			t.Errorf("%q was taken for %+v", text, c)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOf(rapid.Byte()).Draw(t, "raw")
		if c, err := DecodeChoice(raw); err == nil && (!c.Load.Valid() || !c.Good.Valid()) {
			t.Fatalf("%+v", c)
		}
	})
}

// The end of syslinux's file is as syslinux's installer leaves it (these bytes are its),
// and as syslinux was seen to take it; one sector may be torn, not both.
func TestOnce(t *testing.T) {
	none := Once(0)
	for half := range 2 {
		s := none[half*Sector:][:Sector]
		if !bytes.Equal(s[:8], []byte{0xa5, 0x2f, 0x2d, 0x5a, 0x67, 0x17, 0x04, 0xa3}) || !bytes.Equal(s[Sector-4:], []byte{0x64, 0xbf, 0x28, 0xdd}) || len(bytes.Trim(s[8:Sector-4], "\x00")) > 0 {
			t.Fatalf("% x", s)
		}
	}
	core := bytes.Repeat([]byte("core"), Sector)
	for _, s := range []Slot{0, A, B} {
		file := append(bytes.Clone(core), Once(s)...)
		if !HasOnce(file) {
			t.Errorf("%q is not told", s)
		}
		file[len(core)+9] ^= 1
		if !HasOnce(file) {
			t.Errorf("%q: one torn sector", s)
		}
		file[len(core)+Sector+9] ^= 1
		if HasOnce(file) {
			t.Errorf("%q: two torn sectors", s)
		}
	}
	if b := Once(B); string(b[8:11]) != "\x01\x01b" || HasOnce(core) || HasOnce(nil) {
		t.Errorf("% x", b[:16])
	}
}

func TestOther(t *testing.T) {
	for _, s := range []Slot{A, B} {
		if s.Other() == s || s.Other().Other() != s || s.Partition() == s.Other().Partition() {
			t.Errorf("%s and %s", s, s.Other())
		}
	}
}

func TestEntryNames(t *testing.T) {
	if a, b := EntryName(A, false), EntryName(B, true); a != "rivulet-a.conf" || b != "rivulet-b+3.conf" {
		t.Error(a, b)
	}
	if got := Fill("title @SLOT@ @VERSION@ @SLOT@", B, 12); got != "title b 12 b" {
		t.Error(got)
	}
}
