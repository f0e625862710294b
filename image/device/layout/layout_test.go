package layout

import (
	"bytes"
	"slices"
	"strings"
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

// What somebody has added to the command line is found again, in the file of each loader, and nothing else.
func TestWordsOfTheOwner(t *testing.T) {
	quirk := []string{"usb-storage.quirks=152d:0578:u", `dyndbg="file x +p"`}
	for _, c := range []struct {
		file, text string
		want       []string
	}{
		{"a/cmdline.txt", Fill(CommandPi, A, 1) + "\n", nil},
		{"a/cmdline.txt", Fill(CommandPi, A, 1) + " " + strings.Join(quirk, "  ") + "\r\n", quirk},
		{"a/cmdline.txt", "pcie_aspm=off " + Fill(CommandPi, A, 1) + "\nnever=read\n", []string{"pcie_aspm=off"}},
		{"a/cmdline.txt", strings.Replace(Fill(CommandPi, A, 1), "panic=10", "panic=60 root=/dev/sda init=/bin/sh rivulet.slot=b", 1), []string{"panic=60"}},
		{"a/cmdline.txt", "", nil},
		{"a/entry.cfg", "LABEL a\n LINUX /a/linux\n append " + Fill(CommandPC, A, 1) + " video=1024x768\n", []string{"video=1024x768"}},
		{"loader/entries/rivulet-a.conf", "title a\noptions " + Fill(CommandPC, A, 1) + "\noptions nomodeset\n", []string{"nomodeset"}},
		{"a/README.txt", "append x\noptions y\n", nil},
	} {
		if got := Added(c.file, c.text, A); !slices.Equal(got, c.want) {
			t.Errorf("%s, %q: %q, want %q", c.file, c.text, got, c.want)
		}
	}
	for file, text := range map[string]string{"cmdline.txt": CommandPi + "\n", "entry.cfg": "LABEL b\n APPEND " + CommandPC + "\n", "loader.conf": "options " + CommandPC + "\nversion 1\n"} {
		filled := Add(file, Fill(text, B, 1), quirk)
		if got := Added(file, filled, B); !slices.Equal(got, quirk) || strings.Count(filled, "\n") != strings.Count(text, "\n") || len(filled) != len(Fill(text, B, 1))+len(strings.Join(quirk, " "))+1 {
			t.Errorf("%s: %q has %q", file, filled, got)
		}
	}
	if text := "APPEND x\n"; Add("b/syslinux.cfg", text, quirk) != text || Add("entry.cfg", text, nil) != text {
		t.Error("a file is changed")
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
