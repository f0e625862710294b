package slots

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rivulet/appliance/lifetime/slots/slotstest"
	"rivulet/image/device/layout"
)

func device(t *testing.T, pi bool) Folder {
	t.Helper()
	d := Folder{t.TempDir()}
	l := layout.Syslinux
	if pi {
		l = layout.PiFirmware
		must(t, d.Write("config.txt", []byte("include slot.cfg\n")))
	} else {
		must(t, d.Write("loader/entries/rivulet-a.conf", []byte("version 7\n")))
		must(t, d.Write(layout.SyslinuxFile, syslinux(0)))
	}
	must(t, d.Write(layout.ChoiceFile, layout.Choice{Load: layout.A, Good: layout.A}.Encode(l)))
	return d
}

// syslinux is a file of its with an end that has a slot started once.
func syslinux(once layout.Slot) []byte { return append([]byte("core"), layout.Once(once)...) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// all is what is on the boot partition.
func all(t *testing.T, d Folder) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(d.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, d.dir+"/")] = strings.TrimRight(string(raw), "\n")
		return err
	}))
	return out
}

func expect(t *testing.T, d Folder, when string, want map[string]string) {
	t.Helper()
	if got := all(t, d); !maps.Equal(got, want) {
		t.Errorf("%s:\n%v\nwant\n%v", when, got, want)
	}
}

func fillFrom(t *testing.T, d Folder, bundle []byte) (written string, err error) {
	t.Helper()
	root, err := os.Create(filepath.Join(t.TempDir(), "part"))
	must(t, err)
	defer root.Close()
	_, err = Fill(t.Context(), bytes.NewReader(bundle), io.Discard, d, root, func() {}, layout.B)
	raw, rerr := os.ReadFile(root.Name())
	must(t, rerr)
	return string(raw), err
}

func fill(t *testing.T, d Folder, pc bool) {
	t.Helper()
	root, err := fillFrom(t, d, slotstest.Bundle(t, "v2", pc))
	must(t, err)
	if root != "root v2" {
		t.Errorf("the root is %q", root)
	}
}

// The way of an image on a PC, file by file, with what a failed one left behind.
func TestOnAPC(t *testing.T) {
	d := device(t, false)
	must(t, d.Write("loader/entries/rivulet-b+0-3.conf", []byte("version 6\n")))
	must(t, d.Write("b/old", []byte("old")))
	must(t, Clear(d, layout.A))
	fill(t, d, true)
	entry := "title b\nversion 8\nsort-key rivulet\nlinux /b/linux"
	files := map[string]string{
		"slot.cfg": "DEFAULT a\n# rivulet good=a try=- tries=0", "loader/entries/rivulet-a.conf": "version 7",
		"b/linux": "kernel v2", "b/initrd": "initrd v2", "b/cmdline.txt": "rivulet.slot=b", "b/loader.conf": entry,
		layout.SyslinuxFile: string(syslinux(0)),
	}
	expect(t, d, "filled", files)
	for range 2 { // again is the same
		must(t, Arm(d, layout.A, layout.B))
		files["slot.cfg"], files["loader/entries/rivulet-b+3.conf"] = "DEFAULT a\n# rivulet good=a try=b tries=3", entry
		files["b/once"], files[layout.SyslinuxFile] = string(layout.Once(layout.B)), string(syslinux(layout.B))
		expect(t, d, "armed", files)
	}
	// The loader counts, and the slot turns out to be good.
	must(t, d.Rename("loader/entries/rivulet-b+3.conf", "loader/entries/rivulet-b+2-1.conf"))
	delete(files, "loader/entries/rivulet-b+3.conf")
	for range 2 {
		must(t, Accept(d, layout.B))
		files["slot.cfg"], files["loader/entries/rivulet-b.conf"] = "DEFAULT b\n# rivulet good=b try=- tries=0", entry
		files[layout.SyslinuxFile] = string(syslinux(0))
		delete(files, "b/once")
		files["b/good"] = "good"
		expect(t, d, "accepted", files)
	}
	must(t, Reject(d, layout.A))
	delete(files, "loader/entries/rivulet-b.conf")
	delete(files, "b/good")
	files["slot.cfg"] = "DEFAULT a\n# rivulet good=a try=- tries=0"
	expect(t, d, "rejected", files)
}

// A syslinux that cannot start a slot once is told to start it until it is judged.
func TestSyslinuxOfAnotherKind(t *testing.T) {
	for _, content := range []string{"", "core", string(make([]byte, 4*layout.Sector))} {
		d := device(t, false)
		must(t, d.Write(layout.SyslinuxFile, []byte(content)))
		fill(t, d, true)
		must(t, Arm(d, layout.A, layout.B))
		got := all(t, d)
		if got["slot.cfg"] != "DEFAULT b\n# rivulet good=a try=b tries=3" || got[layout.SyslinuxFile] != content || got["b/once"] != "" {
			t.Errorf("%.10q: %q", content, got)
		}
		must(t, Reject(d, layout.A))
		if got := all(t, d)["slot.cfg"]; got != "DEFAULT a\n# rivulet good=a try=- tries=0" {
			t.Errorf("%.10q: %s", content, got)
		}
	}
}

func TestOnAPi(t *testing.T) {
	d := device(t, true)
	must(t, Clear(d, layout.A))
	fill(t, d, false)
	must(t, Arm(d, layout.A, layout.B))
	files := map[string]string{"config.txt": "include slot.cfg", "slot.cfg": "os_prefix=b/\n# rivulet good=a try=b tries=3",
		"b/linux": "kernel v2", "b/initrd": "initrd v2", "b/cmdline.txt": "rivulet.slot=b"}
	expect(t, d, "armed", files)
	must(t, Accept(d, layout.B))
	files["slot.cfg"], files["b/good"] = "os_prefix=b/\n# rivulet good=b try=- tries=0", "good"
	expect(t, d, "accepted", files)
	delete(files, "b/good")
	// A choice that is garbage is written anew, for the right loader.
	must(t, d.Write(layout.ChoiceFile, []byte("garbage")))
	must(t, Reject(d, layout.A))
	files["slot.cfg"] = "os_prefix=a/\n# rivulet good=a try=- tries=0"
	expect(t, d, "rejected", files)
}

// What an owner has added to the kernel's command line, for a disk or a screen that needs it, is there after an upgrade.
func TestWordsOfTheOwnerStay(t *testing.T) {
	m := layout.Manifest{Version: "v2", Kubernetes: "v1.35.0", Arch: runtime.GOARCH}
	root := [2]string{layout.RootName, "r"}
	pi := slotstest.Pack(t, m, [][2]string{{"boot/cmdline.txt", layout.CommandPi + " new\n"}, root})
	pc := slotstest.Pack(t, m, [][2]string{{"boot/entry.cfg", "LABEL @SLOT@\n APPEND " + layout.CommandPC + "\n"}, {"boot/" + layout.EntryFile, "version @VERSION@\noptions " + layout.CommandPC + "\n"}, root})

	d := device(t, true)
	disk := layout.DiskWord + "=" + layout.DiskID(0x1a2b3c4d) // the disk is found by it
	must(t, d.Write("a/cmdline.txt", []byte("usb-storage.quirks=152d:0578:u "+layout.Fill(layout.CommandPi, layout.A, 1)+" "+disk+"\n")))
	take := func(bundle []byte) {
		t.Helper()
		_, err := fillFrom(t, d, bundle)
		must(t, err)
	}
	take(pi)
	if got := all(t, d)["b/cmdline.txt"]; got != layout.Fill(layout.CommandPi, layout.B, 2)+" new usb-storage.quirks=152d:0578:u rivulet.disk=1A2B-3C4D" {
		t.Error(got)
	}
	must(t, d.Write("a/cmdline.txt", []byte(layout.CommandPi+strings.Repeat(" more", 200))))
	take(pi) // a word that is there many times is taken once
	must(t, d.Write("a/cmdline.txt", []byte(layout.CommandPi+" long="+strings.Repeat("x", layout.CommandLimit))))
	if _, err := fillFrom(t, d, pi); !errors.Is(err, ErrSlot) || !strings.Contains(err.Error(), "in a/cmdline.txt on the boot partition") {
		t.Errorf("more than is read: %v", err)
	}

	d = device(t, false) // edited for one loader, kept for both
	must(t, d.Write("loader/entries/rivulet-a+2-1.conf", []byte("version 7\noptions nomodeset "+layout.Fill(layout.CommandPC, layout.A, 7)+"\n")))
	must(t, d.Write("a/entry.cfg", []byte("LABEL a\n APPEND "+layout.Fill(layout.CommandPC, layout.A, 7)+"\n")))
	take(pc)
	for file, want := range map[string]string{"b/entry.cfg": "LABEL b\n APPEND ", "b/" + layout.EntryFile: "version 8\noptions "} {
		if got := all(t, d)[file]; got != want+layout.Fill(layout.CommandPC, layout.B, 8)+" nomodeset" {
			t.Errorf("%s: %q", file, got)
		}
	}
}

// A bundle is taken as it was made, or not at all.
func TestBadBundles(t *testing.T) {
	m := layout.Manifest{Version: "v2", Kubernetes: "v1.35.0", Arch: runtime.GOARCH}
	boot, root := [2]string{"boot/linux", "k"}, [2]string{layout.RootName, "r"}
	good := slotstest.Pack(t, m, [][2]string{boot, root})
	if _, err := Read(t.Context(), bytes.NewReader(good), io.Discard, nil); err != nil {
		t.Fatal(err)
	}
	silent := m
	silent.Kubernetes = ""
	listed := m
	listed.Files = []layout.File{{Name: "boot/missing", Size: 1}}
	for name, raw := range map[string][]byte{
		"empty":               nil,
		"no tar":              bytes.Repeat([]byte("x"), 4096),
		"half":                good[:len(good)/2],
		"no root":             slotstest.Pack(t, m, [][2]string{boot}),
		"no kernel":           slotstest.Pack(t, m, [][2]string{root}),
		"up and out":          slotstest.Pack(t, m, [][2]string{boot, root, {"boot/../../etc/passwd", "x"}}),
		"from the top":        slotstest.Pack(t, m, [][2]string{boot, root, {"boot//slot.cfg", "x"}}),
		"elsewhere":           slotstest.Pack(t, m, [][2]string{boot, root, {"slot.cfg", "x"}}),
		"twice for FAT":       slotstest.Pack(t, m, [][2]string{boot, root, {"boot/LINUX", "x"}}),
		"empty file":          slotstest.Pack(t, m, [][2]string{boot, root, {"boot/x", ""}}),
		"listed, not there":   slotstest.Pack(t, listed, [][2]string{boot, root}),
		"silent":              slotstest.Pack(t, silent, [][2]string{boot, root}),
		"not in the manifest": append(good[:len(good)-1024:len(good)-1024], slotstest.Pack(t, m, [][2]string{boot, root})...),
	} {
		_, err := Read(t.Context(), bytes.NewReader(raw), io.Discard, nil)
		if !errors.Is(err, ErrBundle) || !strings.Contains(err.Error(), "; get ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		raw := bytes.Clone(good)
		at := rapid.IntRange(0, len(raw)-1).Draw(rt, "at")
		raw[at] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		var seen bytes.Buffer
		if _, err := Read(t.Context(), bytes.NewReader(raw), &seen, nil); err == nil && !bytes.Equal(seen.Bytes(), raw) {
			rt.Fatalf("byte %d is changed, and not all of it was handed to the signature", at)
		}
	})
}

// A disk that does not keep what it is given, a card that is full, a stop: the error
// says that the slot that runs is as it was.
func TestSlotThatCannotBeWritten(t *testing.T) {
	bundle := slotstest.Bundle(t, "v2", true)
	for name, root := range map[string]Root{"forgets": &spoilt{forgets: true}, "refuses": &spoilt{}} {
		d := device(t, false)
		if _, err := Fill(t.Context(), bytes.NewReader(bundle), io.Discard, d, root, func() {}, layout.B); !errors.Is(err, ErrSlot) {
			t.Errorf("%s: %v", name, err)
		}
		if names, err := d.List(entries); err != nil || !slices.Equal(names, []string{"rivulet-a.conf"}) {
			t.Errorf("%s: %v %v", name, names, err)
		}
	}
	if IsBundle(os.DevNull) || IsBundle(filepath.Join(t.TempDir(), "none")) {
		t.Error("nothing is a bundle")
	}
	file := filepath.Join(t.TempDir(), "x.bundle")
	must(t, os.WriteFile(file, bundle, 0o600))
	if !IsBundle(file) {
		t.Error("a bundle is none")
	}
	if _, err := Running(); err != nil && !errors.Is(err, ErrNoImage) {
		t.Errorf("here: %v", err)
	}
}

type spoilt struct{ forgets bool }

func (s *spoilt) WriteAt(p []byte, _ int64) (int, error) {
	if s.forgets {
		return len(p), nil
	}
	return 0, errors.New("input/output error")
}
func (*spoilt) ReadAt(p []byte, _ int64) (int, error) { clear(p); return len(p), nil }
func (*spoilt) Sync() error                           { return nil }

// A file of the loader that cannot be read is no other loader: what it starts next is not known.
func TestALoaderThatCannotBeRead(t *testing.T) {
	d := Folder{t.TempDir()}
	if err := once(d, 0); err != nil {
		t.Errorf("without that loader: %v", err)
	}
	if err := os.MkdirAll(d.at(layout.SyslinuxFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := once(d, 0); err == nil {
		t.Error("nobody says that it cannot be read")
	}
}
