package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/image/device/files"
	"rivulet/image/device/layout"
	"rivulet/image/sources"
)

func TestListIsReadForItsArchitecture(t *testing.T) {
	text := []byte("# x\nboth bash\namd64 a\narm64 b/suite\nboth -perl\narm64 -c\n")
	want, left, err := wanted(text, "arm64")
	if err != nil || !reflect.DeepEqual(want, []string{"bash", "b/suite"}) || !reflect.DeepEqual(left, []string{"perl", "c"}) {
		t.Errorf("%v, %v, %v", want, left, err)
	}
	for _, bad := range []string{"riscv bash", "both", "both a b"} {
		if _, _, err := wanted([]byte("both x\n"+bad+"\n"), "amd64"); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// The lock has for each image what the list asks for, and nothing that it leaves out.
func TestLockIsComplete(t *testing.T) {
	list, err := os.ReadFile("../packages.list")
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range sources.ImageArches {
		debs, err := sources.Image("../../..", arch)
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]bool{}
		for _, d := range debs {
			have[d.Name] = true
			if d.Arch != arch && d.Arch != "all" {
				t.Errorf("%s in the image for %s", d, arch)
			}
		}
		want, left, err := wanted(list, arch)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range want {
			if name, _, _ = strings.Cut(name, "/"); !have[name] {
				t.Errorf("%s lacks %s; make image-lock", arch, name)
			}
		}
		for _, name := range left {
			if have[name] {
				t.Errorf("%s has %s", arch, name)
			}
		}
	}
	if _, err := sources.Image("../../..", "riscv64"); err == nil || !strings.Contains(err.Error(), "make image-lock") {
		t.Errorf("an architecture that is not there: %v", err)
	}
}

func TestModulesComeWithWhatTheyNeed(t *testing.T) {
	dep := "kernel/fs/ext4/ext4.ko.xz: kernel/lib/crc16.ko.xz kernel/fs/jbd2/jbd2.ko.xz\nkernel/a/crc32c-intel.ko.xz:\nkernel/sound/snd.ko.xz:\nkernel/lib/crc16.ko.xz:\n"
	got := pick(dep, []string{"ext4", "crc32c_intel", "is-built-in", "crc16"})
	want := []string{"kernel/a/crc32c-intel.ko.xz", "kernel/fs/ext4/ext4.ko.xz", "kernel/fs/jbd2/jbd2.ko.xz", "kernel/lib/crc16.ko.xz"}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if lost := unknown([]string{"ext4", "crc32c_intel", "sd-mod", "regulator-fixed"}, dep, "kernel/drivers/scsi/sd_mod.ko\n"); !slices.Equal(lost, []string{"regulator-fixed"}) {
		t.Errorf("a name that no driver has: %v", lost)
	}
}

// What cpio unpacks is what was packed, and twice the same bytes come out.
func TestInitrdIsReproducible(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"init": "#!/bin/sh\n", "a/b": "x", "a/c": ""} {
		if err := put(filepath.Join(dir, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := link("a/b", filepath.Join(dir, "l")); err != nil {
		t.Fatal(err)
	}
	var one, two bytes.Buffer
	for _, w := range []io.Writer{&one, &two} {
		if err := writeCPIO(w, dir, time.Unix(1700000000, 0), 4); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		if err := os.Chtimes(filepath.Join(dir, "init"), now, now); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the same tree made other bytes")
	}
	if _, err := exec.LookPath("busybox"); err != nil {
		lacking(t, "busybox")
	}
	cmd := exec.Command("busybox", "cpio", "-t")
	cmd.Stdin = bytes.NewReader(one.Bytes())
	out, err := cmd.Output()
	if got := strings.Fields(string(out)); err != nil || !slices.Equal(got, []string{"a", "a/b", "a/c", "init", "l"}) {
		t.Errorf("%v, %v", got, err)
	}
}

// The map names each block that matters once, in order, with hashes that fit, and its
// own hash as bmaptool takes it.
func TestBlockMap(t *testing.T) {
	image := filepath.Join(t.TempDir(), "image")
	content := make([]byte, 10*blockSize+100)
	for i := range content {
		content[i] = byte(i / blockSize)
	}
	if err := os.WriteFile(image, content, 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := blockMap(image, []span{{7, 8}, {0, 1}, {2, 3}, {3, 4}})
	if err != nil {
		t.Fatal(err)
	}
	var m bmapFile
	if err := xml.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	sum := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	want := []bmapRange{{sum(content[:5*blockSize]), " 0-4 "}, {sum(content[7*blockSize : 9*blockSize]), " 7-8 "}}
	if !reflect.DeepEqual(m.BlockMap, want) || m.Mapped != 7 || m.Blocks != 11 || m.Size != int64(len(content)) {
		t.Errorf("%s", text)
	}
	if own := sum(bytes.Replace(text, []byte(m.Sum), []byte(strings.Repeat("0", 64)), 1)); own != m.Sum {
		t.Errorf("its own hash is %s, it says %s", own, m.Sum)
	}
}

// Partitions do not overlap, lie where flash memory likes them, and the data
// partition is the last: it grows.
func TestPartitions(t *testing.T) {
	j := &job{arch: "amd64"}
	at := int64(layout.Start)
	for i, p := range j.partitions() {
		if p.begin != at || p.begin%layout.MiB != 0 {
			t.Errorf("partition %d begins at %d, the one before ends at %d", i+1, p.begin, at)
		}
		at = p.begin + p.size
	}
	if !j.partitions()[layout.Data-1].whole || at > imageSize-layout.MiB {
		t.Error("the data partition, or the end of the disk")
	}
	for arch, has := range map[string]string{"amd64": "LegacyBIOSBootable", "arm64": "label: dos"} {
		if text := (&job{arch: arch}).table(); !strings.Contains(text, has) || strings.Count(text, "start=") != 4 {
			t.Errorf("%s: %s", arch, text)
		}
	}
}

// The initrd writes slot.cfg as package layout does, byte for byte.
func TestInitrdWritesTheChoiceAsWeDo(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		lacking(t, "busybox")
	}
	begin, end := strings.Index(files.Init, "choice() {"), strings.Index(files.Init, "\n}\n# syslinux starts once")
	if begin < 0 || end < 0 {
		t.Fatal("init has no function choice")
	}
	for _, loader := range []layout.Loader{layout.Syslinux, layout.PiFirmware} {
		dir := t.TempDir()
		file := filepath.Join(dir, layout.ChoiceFile)
		before := layout.Choice{Load: layout.B, Good: layout.A, Try: layout.B, Tries: 3}.Encode(loader)
		if err := os.WriteFile(file, before, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, c := range []layout.Choice{{Load: layout.B, Good: layout.A, Try: layout.B, Tries: 2}, {Load: layout.A, Good: layout.A}} {
			try := "-"
			if c.Try.Valid() {
				try = c.Try.String()
			}
			script := "mount() { :; }\n" + strings.NewReplacer("/fat/", dir+"/", "/run/", dir+"/").Replace(files.Init[begin:end+3]) +
				"{ read -r line1; read -r line2; } <" + file + "\nchoice $0 $1 $2 $3\n"
			if out, err := exec.Command(busybox, "sh", "-c", script, c.Load.String(), c.Good.String(), try, string(rune('0'+c.Tries))).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			got, err := os.ReadFile(file)
			if err != nil || !bytes.Equal(got, c.Encode(loader)) {
				t.Errorf("%v: %q, %v", c, got, err)
			}
		}
	}
}

// The data partition grows to the end of the disk, and that of a Raspberry Pi to 2 TiB: its MBR counts no further. Once
// it has, it is left alone.
func TestInitrdGrows(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		lacking(t, "busybox")
	}
	sfdisk, err := exec.LookPath("sfdisk")
	if err != nil {
		if sfdisk = "/usr/sbin/sfdisk"; !exists(sfdisk) {
			lacking(t, "sfdisk")
		}
	}
	_, rest, ok := strings.Cut(files.Init, "\nsize() {")
	growth, _, end := strings.Cut(rest, "\n# The data partition.")
	if !ok || !end {
		t.Fatal("init has no growth")
	}
	const gigabyte, most = 1e9 / layout.Sector, 1<<32 - 1
	for _, c := range []struct {
		arch    string
		sectors int64
		end     int64 // of the partition, at least
	}{
		{"amd64", 64 * gigabyte, 63 * gigabyte}, {"amd64", 6000 * gigabyte, 5999 * gigabyte},
		{"arm64", 64 * gigabyte, 63 * gigabyte}, {"arm64", 3000 * gigabyte, most},
		{"arm64", 1<<32 + 2500000, most}, // counted from 0 it would be smaller than it is
	} {
		dir := t.TempDir()
		j := &job{arch: c.arch}
		data := j.partitions()[layout.Data-1]
		if c.arch == "arm64" {
			if err := put(filepath.Join(dir, "fat/config.txt"), "", 0o644); err != nil {
				t.Fatal(err)
			}
		}
		disk := filepath.Join(dir, "dev/sda")
		size := data.size / layout.Sector
		write := func(name string, n int64) {
			t.Helper()
			if err := put(filepath.Join(dir, name), fmt.Sprint(n), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		write("run/x", 0)
		write("dev/sda", 0)
		if err := os.Truncate(disk, c.sectors*layout.Sector); err != nil {
			t.Skipf("needs a file system with sparse files of %d GB: %v", c.sectors/gigabyte, err)
		}
		if err := runIn("", nil, j.table(), "sfdisk", "-q", "--no-reread", "--no-tell-kernel", disk); err != nil {
			t.Fatal(err)
		}
		for i, says := range []string{"grows", ""} {
			write("sys/sda/size", c.sectors)
			write("sys/sda4/start", data.begin/layout.Sector)
			write("sys/sda4/size", size)
			script := "DISK=/dev/sda DATA=/dev/sda4\nsay() { echo \"$*\"; }\nuse() { case $1 in */sfdisk) shift; " + sfdisk + " \"$@\";; esac; }\nsize() {" + growth
			out, err := exec.Command(busybox, "sh", "-c", strings.NewReplacer("/dev/", dir+"/dev/", "/sys/class/block/", dir+"/sys/", "/fat/", dir+"/fat/", "/run/", dir+"/run/").Replace(script)).CombinedOutput()
			if err != nil || says == "" && len(out) > 0 || !strings.Contains(string(out), says) || strings.Contains(string(out), "sfdisk") {
				t.Errorf("%s of %d sectors, start %d: %v %s", c.arch, c.sectors, i+1, err, out)
			}
			table, err := exec.Command(sfdisk, "--json", disk).Output()
			var now struct {
				Table struct{ Partitions []struct{ Start, Size int64 } } `json:"partitiontable"`
			}
			if err := errors.Join(err, json.Unmarshal(table, &now)); err != nil || len(now.Table.Partitions) != 4 {
				t.Fatalf("%v: %s", err, table)
			}
			last := now.Table.Partitions[3]
			if size = last.Size; last.Start != data.begin/layout.Sector || last.Start+last.Size < c.end || last.Start+last.Size > c.sectors {
				t.Errorf("%s of %d sectors: the partition is %d to %d", c.arch, c.sectors, last.Start, last.Start+last.Size)
			}
		}
	}
}

// A user that a later slot brings is made on a device whose owner has made a group, at its start; the owner's group stays.
func TestUsersOfALaterSlot(t *testing.T) {
	if _, err := exec.LookPath("systemd-sysusers"); err != nil {
		lacking(t, "systemd-sysusers")
	}
	j := &job{root: t.TempDir()}
	for name, text := range map[string]string{
		"usr/share/base-passwd/passwd.master": "root:*:0:0:root:/root:/bin/bash\n", "usr/share/base-passwd/group.master": "root:*:0:\n",
		"usr/lib/sysusers.d/a.conf": "u! later - \"of a package\"\n",
	} {
		if err := put(j.in(name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.users(); err != nil {
		t.Fatal(err)
	}
	// What the slot before had, as the owner's change has copied it.
	for file, line := range map[string]string{"passwd": "", "group": "rivulet:x:1500:\n", "shadow": "", "gshadow": "rivulet:!::\n"} {
		raw, err := os.ReadFile(j.in("etc", file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(raw), "\niwd:") || !strings.Contains(string(raw), "\nlater:") {
			t.Errorf("/etc/%s of the image: %s", file, raw)
		}
		old := slices.DeleteFunc(strings.SplitAfter(string(raw), "\n"), func(l string) bool { return strings.HasPrefix(l, "iwd:") })
		if err := put(j.in("etc", file), strings.Join(old, "")+line, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	conf, err := fs.ReadFile(files.Root, "root/usr/lib/sysusers.d/rivulet.conf")
	if err != nil {
		t.Fatal(err)
	}
	if err := runIn("", nil, string(conf), "systemd-sysusers", "--root="+j.root, "-"); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"passwd": "\niwd:", "group": "\nrivulet:x:1500:"} {
		if raw, err := os.ReadFile(j.in("etc", file)); err != nil || !strings.Contains(string(raw), want) {
			t.Errorf("/etc/%s after a start: %s, %v", file, raw, err)
		}
	}
	dropin, err := fs.ReadFile(files.Root, "root/usr/lib/systemd/system/systemd-sysusers.service.d/10-rivulet.conf")
	if err != nil || !strings.HasSuffix(string(dropin), "[Unit]\nConditionNeedsUpdate=\n") {
		t.Errorf("systemd-sysusers has a condition: %s, %v", dropin, err)
	}
}

// Where no loader counts the initrd does: a slot that is tried, by its own; one that does not
// come as far as that, by the good one's, which has syslinux start it once more.
func TestInitrdCountsTries(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		lacking(t, "busybox")
	}
	begin, end := strings.Index(files.Init, "choice() {"), strings.Index(files.Init, "\n}\n# leave makes")
	if begin < 0 || end < 0 {
		t.Fatal("init has no function count")
	}
	trial := func(load layout.Slot, tries int) layout.Choice {
		return layout.Choice{Load: load, Good: layout.A, Try: layout.B, Tries: tries}
	}
	over := layout.Choice{Load: layout.A, Good: layout.A}
	for name, c := range map[string]struct {
		slot        layout.Slot
		pi, refuses bool
		kept        bool // the slot's file for syslinux is there
		has, want   layout.Choice
		once, still layout.Slot
		restarts    bool
	}{
		"nothing is tried":                       {slot: layout.A, has: over, want: over},
		"nothing is tried, leftovers":            {slot: layout.A, has: over, want: over, kept: true},
		"tried":                                  {slot: layout.B, kept: true, has: trial(layout.A, 3), want: trial(layout.B, 2)},
		"tried, for the last time":               {slot: layout.B, kept: true, has: trial(layout.B, 1), want: trial(layout.B, 0)},
		"tried for long":                         {slot: layout.B, kept: true, has: trial(layout.B, 0), want: over, restarts: true},
		"it did not come up":                     {slot: layout.A, kept: true, has: trial(layout.A, 3), want: trial(layout.A, 2), still: layout.B, restarts: true},
		"nor again":                              {slot: layout.A, kept: true, has: trial(layout.A, 2), want: trial(layout.A, 1), still: layout.B, restarts: true},
		"that was enough":                        {slot: layout.A, kept: true, has: trial(layout.A, 1), want: trial(layout.A, 1)},
		"the loader does not do it":              {slot: layout.A, kept: true, has: trial(layout.A, 3), once: layout.B, want: trial(layout.B, 3), still: layout.B, restarts: true},
		"armed by a version that did not know":   {slot: layout.A, has: trial(layout.A, 3), want: trial(layout.A, 3)},
		"chosen by hand, as the loader has both": {slot: layout.A, kept: true, has: trial(layout.B, 2), want: trial(layout.B, 2)},
		"a disk that takes nothing":              {slot: layout.A, kept: true, refuses: true, has: trial(layout.A, 3), want: trial(layout.A, 3)},
		"a Raspberry Pi":                         {slot: layout.A, pi: true, has: trial(layout.A, 3), want: trial(layout.A, 3)},
		"a Raspberry Pi, tried":                  {slot: layout.B, pi: true, has: trial(layout.B, 3), want: trial(layout.B, 2)},
	} {
		dir, loader := t.TempDir(), layout.Syslinux
		core := bytes.Repeat([]byte("core"), layout.Sector)
		content := map[string][]byte{layout.SyslinuxFile: append(bytes.Clone(core), layout.Once(c.once)...)}
		if c.pi {
			loader, content = layout.PiFirmware, map[string][]byte{}
		}
		content[layout.ChoiceFile] = c.has.Encode(loader)
		if c.kept {
			content["b/"+layout.OnceFile] = layout.Once(layout.B)
		}
		for file, raw := range content {
			if err := put(filepath.Join(dir, file), string(raw), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		script := "mount() { :; }\nsay() { :; }\nfail() { echo restarts; exit; }\nSLOT=" + c.slot.String() + " OTHER=" + c.slot.Other().String() + " try=\n"
		if c.refuses {
			script += "dd() { return 1; }\n"
		}
		script += strings.NewReplacer("/fat/", dir+"/", "/run/", dir+"/").Replace(files.Init[begin:end+3]) + "count\n:"
		out, err := exec.Command(busybox, "sh", "-c", script).CombinedOutput()
		if restarts := string(out) == "restarts\n"; err != nil || restarts != c.restarts || !restarts && len(out) > 0 {
			t.Errorf("%s: %v %s", name, err, out)
		}
		if got, err := os.ReadFile(filepath.Join(dir, layout.ChoiceFile)); err != nil || !bytes.Equal(got, c.want.Encode(loader)) {
			t.Errorf("%s: %v %q", name, err, got)
		}
		if got, err := os.ReadFile(filepath.Join(dir, layout.SyslinuxFile)); !c.pi && (err != nil || !bytes.Equal(got, append(core, layout.Once(c.still)...))) {
			t.Errorf("%s: %v, syslinux's file ends as % x", name, err, got[max(0, len(got)-layout.Sector):][:16])
		}
	}
}

// A slot that does not come up is left for the other, if that was called good before, and by every loader: one that is on
// trial has its tries, and one that was given up or is half written is nothing to go to.
func TestInitrdLeavesASlot(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		lacking(t, "busybox")
	}
	part := func(from, to string) string {
		_, rest, ok := strings.Cut(files.Init, from)
		body, _, end := strings.Cut(rest, to)
		if !ok || !end {
			t.Fatalf("init has no %q", from)
		}
		return from + body + "\n}\n"
	}
	functions := part("choice() {", "\n}\n# syslinux") + part("leave() {", "\n}\n# Starts of") + part("starts() {", "\n}\nmkdir -p /fat") + part("root() {", "\n}\nroot ||")
	now := layout.Choice{Load: layout.A, Good: layout.A}
	then := layout.Choice{Load: layout.B, Good: layout.B}
	for name, c := range map[string]struct {
		fat   []string // files besides
		try   string
		bad   bool   // the root cannot be mounted
		fake  string // in place of a program
		count string
		pi    layout.Choice // what the Pi's slot.cfg has then
		efi   string        // what UEFI's entries are then
		says  string
		left  string // count
	}{
		"good":                            {fat: []string{"b/good"}, pi: now, efi: "a b", left: "a 1"},
		"again":                           {fat: []string{"b/good"}, count: "a 5\n", pi: now, efi: "a b", left: "a 6"},
		"the other was counted":           {fat: []string{"b/good"}, count: "b 6\n", pi: now, efi: "a b", left: "a 1"},
		"garbage was counted":             {fat: []string{"b/good"}, count: "\x00\x00\x00\x00", pi: now, efi: "a b", left: "a 1"},
		"it never lasts":                  {fat: []string{"b/good"}, count: "a 6\n", pi: then, efi: "a+0-1 b", says: "it started 6 times in a row, and rivulet never ran for long"},
		"it never lasts, as the other":    {fat: []string{"b/good", "b/left"}, count: "a 6\n", pi: then, efi: "a+0-1 b", says: "it started 6 times in a row, and rivulet never ran for long"},
		"nothing to go to":                {count: "a 6\n", pi: now, efi: "a b", left: "a 6"},
		"on trial":                        {fat: []string{"b/good"}, try: "a", count: "a 6\n", pi: now, efi: "a b", left: "a 6"},
		"a boot partition that is broken": {fat: []string{"b/good"}, fake: "mount() { case $2 in remount,rw) return 1;; esac; }\n", count: "a 6\n", pi: now, efi: "a b", left: "a 6"},
		"a root that cannot be read":      {fat: []string{"b/good"}, bad: true, pi: then, efi: "a+0-1 b", says: "its system cannot be read"},
		"nor is there another":            {bad: true, pi: now, efi: "a b"},
	} {
		for _, efi := range []bool{false, true} {
			dir := t.TempDir()
			fat := filepath.Join(dir, "fat")
			write := func(name, content string) {
				t.Helper()
				if err := put(filepath.Join(dir, name), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("fat/"+layout.ChoiceFile, string(now.Encode(layout.PiFirmware)))
			write("data/none", "")
			for _, f := range c.fat {
				write("fat/"+f, "x\n")
			}
			for _, s := range []string{"a", "b"} {
				write("fat/loader/entries/rivulet-"+s+".conf", "entry "+s)
				write("fat/"+s+"/kernel8.img", "kernel")
			}
			if c.count != "" {
				write("data/starts", c.count)
			}
			system := filepath.Join(dir, "none")
			if efi {
				system = dir
			}
			script := "mount() { :; }\n" + c.fake + "say() { :; }\nsleep() { :; }\nfail() { echo restarts; exit; }\nSLOT=a OTHER=b line1=os_prefix=a/ try=" + c.try + "\n" +
				strings.NewReplacer("/fat/", fat+"/", "/run/", dir+"/", "/data/", dir+"/data/", "/sys/firmware/efi", system).Replace(functions)
			if c.bad {
				script += "mount() { case $2 in squashfs) return 1;; esac; }\nroot || leave 'its system cannot be read' && fail\n"
			} else {
				script += "starts\n"
			}
			out, err := exec.Command(busybox, "sh", "-c", script+":").CombinedOutput()
			if restarts := string(out) == "restarts\n"; err != nil || restarts != (c.says != "") || !restarts && len(out) > 0 {
				t.Errorf("%s, UEFI %v: %v %s", name, efi, err, out)
			}
			raw, _ := os.ReadFile(filepath.Join(fat, layout.ChoiceFile))
			got, err := layout.DecodeChoice(raw)
			if want := c.pi; !efi && (err != nil || got != want) || efi && got != now {
				t.Errorf("%s, UEFI %v: %v %v", name, efi, got, err)
			}
			entries := ""
			if efi {
				names, _ := filepath.Glob(filepath.Join(fat, "loader/entries/*"))
				for _, n := range names {
					entries += " " + strings.TrimSuffix(strings.TrimPrefix(filepath.Base(n), "rivulet-"), ".conf")
				}
				if entries != " "+c.efi {
					t.Errorf("%s: entries%s, want %s", name, entries, c.efi)
				}
			}
			why, _ := os.ReadFile(filepath.Join(fat, "a", layout.Left))
			count, _ := os.ReadFile(filepath.Join(dir, "data/starts"))
			if strings.TrimSpace(string(why)) != c.says || strings.TrimSpace(string(count)) != c.left {
				t.Errorf("%s, UEFI %v: %q, counted %q", name, efi, why, count)
			}
			if _, err := os.Stat(filepath.Join(fat, "b", layout.Left)); c.says != "" && err == nil {
				t.Errorf("%s: the other is noted as left, too", name)
			}
		}
	}
}

// A superblock of garbage is mended before the partition is mounted; where a run of e2fsck ends
// without having mended all ("unable to set superblock flags", after a journal was read), another one goes on.
func TestInitrdMendsASuperblockOfGarbage(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		lacking(t, "busybox")
	}
	begin, end := strings.Index(files.Init, "mend() {"), strings.Index(files.Init, "\n}\n# Declared state")
	if begin < 0 || end < 0 {
		t.Fatal("init has no function mend")
	}
	dir := t.TempDir()
	j := &job{work: dir, epoch: time.Unix(1_700_000_000, 0)}
	if err := j.makeData(); err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(dir, "data.ext4")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
	run("resize2fs", "-f", disk, "512M") // a small one has no spare superblock
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte("no superblock!!!"), 1<<10), 0); err != nil {
		t.Fatal(err)
	}
	f.Close()
	mend := func(use string) string {
		t.Helper()
		script := "use() { shift; " + use + "; }\nsay() { :; }\nsleep() { :; }\nDATA=" + disk + " STATE=" + dir + " n=0\n" +
			strings.ReplaceAll(files.Init[begin:end+3], "/run/", dir+"/") + "mend; echo $r after $n"
		out, err := exec.Command(busybox, "sh", "-c", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := mend("n=$((n+1)); e2fsck $@"); got != "1 after 3" {
		t.Errorf("e2fsck ended with %s", got)
	}
	if out, err := exec.Command("e2fsck", "-fn", disk).CombinedOutput(); err != nil {
		t.Errorf("it is not whole: %v: %s", err, out)
	}
	for codes, want := range map[string]string{"0": "0 after 1", "8 0": "0 after 2", "8 8 12 12 1": "1 after 5", "8 8 12 12 12 1": "12 after 5"} {
		if got := mend("n=$((n+1)); set -- " + codes + "; shift $((n-1)); return $1"); got != want {
			t.Errorf("e2fsck ending with %s: %s, want %s", codes, got, want)
		}
	}
}

// A full disk is none that is dead: it takes what it has already. One that takes nothing is, and one of an earlier version
// has no probe yet.
func TestInitrdTellsAFullDiskFromADeadOne(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		lacking(t, "busybox")
	}
	begin, end := strings.Index(files.Init, "prepare() {"), strings.Index(files.Init, "\ndata() {")
	if begin < 0 || end < 0 {
		t.Fatal("init has no function writes")
	}
	for name, c := range map[string]struct {
		fake  string // in place of a program
		fresh bool   // there was no start before
		want  string
	}{
		"good":                          {"", false, "0"},
		"good, the first start":         {"", true, "0"},
		"full":                          {"dd() { cat >/dev/null; echo 'dd: error writing: No space left on device' >&2; return 1; }", true, "0"},
		"full, and a folder is to come": {"mkdir() { echo \"mkdir: can't create directory: No space left on device\" >&2; return 1; }", false, "0"},
		"it reads only":                 {"dd() { echo 'dd: opening: Read-only file system' >&2; return 1; }", false, "1"},
		"it does not read":              {"rm() { echo 'rm: Input/output error' >&2; return 1; }", false, "1"},
		"it takes nothing":              {"dd() { echo 'dd: fsync failed: Input/output error' >&2; return 1; }", false, "1"},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
			t.Fatal(err)
		}
		run := func(fake string) string {
			t.Helper()
			script := "say() { :; }\n" + fake + "\n" + strings.NewReplacer("/data/", dir+"/data/", "/run/", dir+"/").Replace(files.Init[begin:end+1]) + "writes; echo $?"
			out, err := exec.Command(busybox, "sh", "-c", script).Output()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return strings.TrimSpace(string(out))
		}
		if !c.fresh && run("") != "0" {
			t.Fatalf("%s: the start before", name)
		}
		probe := filepath.Join(dir, "data/etc.work/probe")
		before, _ := os.Stat(probe)
		if got := run(c.fake); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if after, err := os.Stat(probe); before != nil && (err != nil || !os.SameFile(before, after)) {
			t.Errorf("%s: the probe wants new space at each start: %v", name, err)
		}
	}
}

// A disk has three chances before its data count as lost, also one that appears late.
func TestInitrdAwaitsADisk(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		lacking(t, "busybox")
	}
	begin, end := strings.Index(files.Init, "await() {"), strings.Index(files.Init, "\n}\n# In memory")
	if begin < 0 || end < 0 {
		t.Fatal("init has no function await")
	}
	for name, c := range map[string]struct{ disk, good, want string }{
		"good":               {"1", "1", "0 0"},
		"one bad moment":     {"1", "2", "5 0"},
		"a long one":         {"1", "3", "35 0"},
		"it appears late":    {"2", "2", "5 0"},
		"never":              {"1", "9", "35 1"},
		"it never appears":   {"9", "1", "35 1"},
		"late, and one more": {"2", "3", "35 0"},
	} {
		script := "n=0 waited=0\nthere() { [ $n -ge " + c.disk + " ]; }\n" +
			"sleep() { n=$((n+1)) waited=$((waited+$1)); }\nload() { :; }\nmend() { :; }\ndata() { [ $n -ge " + c.good + " ]; }\n" +
			strings.ReplaceAll(files.Init[begin:end+3], "[ -b $DATA ]", "there") + "await; r=$?; echo $waited $r"
		if out, err := exec.Command(busybox, "sh", "-c", script).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != c.want {
			t.Errorf("%s: %v %s, want %s", name, err, out, c.want)
		}
	}
}

// Busybox takes a module's options from the command line only if they are written with underscores.
func TestInitrdTakesOptionsOfModules(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		lacking(t, "busybox")
	}
	_, line, _ := strings.Cut(files.Init, "\ntr ' ' '\\n' </proc/cmdline")
	line, _, _ = strings.Cut(line, "\n")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cmdline"), []byte(layout.Fill(layout.CommandPi, layout.A, 1)+" usb-storage.quirks=152d:0578:u a-b pci-x.y video=HDMI-A-1:1.5 c.d-e=f\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := strings.ReplaceAll("tr ' ' '\\n' <"+dir+"/cmdline"+line, "/etc/modprobe.d", dir)
	if out, err := exec.Command(busybox, "sh", "-c", script).CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "cmdline.conf")); err != nil || string(got) != "options usb_storage quirks=152d:0578:u\noptions pci_x y\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// Each folder that init makes on the data partition has its place in the root, and no other.
func TestInitrdMountsWhatItPrepares(t *testing.T) {
	_, list, _ := strings.Cut(files.Init, "for d in etc etc.work ")
	list, _, _ = strings.Cut(list, "; do mkdir -p /data/$d")
	_, inVar, _ := strings.Cut(files.Init, "\nfor d in ")
	inVar, _, _ = strings.Cut(inVar, "; do mount --bind /data/$d /root/var/$d")
	for _, d := range strings.Fields(list) {
		if !slices.Contains(strings.Fields(inVar), d) && !strings.Contains(files.Init, "\nmount --bind /data/"+d+" /root/"+d+"\n") {
			t.Errorf("/data/%s is not mounted", d)
		}
	}
	if !slices.Contains(strings.Fields(list), "mnt") || !slices.Contains(strings.Fields(list), "root") {
		t.Errorf("init prepares %q", list)
	}
}

// Units of the packages are off but for those that the presets name.
func TestUnitsOfTheImage(t *testing.T) {
	if _, err := exec.LookPath("systemctl"); err != nil {
		lacking(t, "systemctl")
	}
	root := t.TempDir()
	j := &job{root: root}
	unit := func(name, target string) {
		t.Helper()
		if err := put(j.in("usr/lib/systemd/system", name), "[Install]\nWantedBy="+target+"\n", 0o644); err != nil {
			t.Fatal(err)
		}
	}
	unit("fstrim.timer", "timers.target")
	unit("rivulet-disk-answers.timer", "timers.target")
	unit("rivulet-data-again.timer", "timers.target")
	unit("remote-fs.target", "multi-user.target")
	unit("apt-daily.timer", "timers.target")
	unit("wpa_supplicant.service", "multi-user.target")
	unit("nfs-client.target", "multi-user.target")
	unit("multi-user.target", "")
	preset, err := files.Root.ReadFile("root/usr/lib/systemd/system-preset/20-rivulet-image.preset")
	if err != nil {
		t.Fatal(err)
	}
	if err := put(j.in("usr/lib/systemd/system-preset/20-rivulet-image.preset"), string(preset), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := j.units(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"timers.target.wants/fstrim.timer":               true,
		"timers.target.wants/rivulet-disk-answers.timer": true,
		"timers.target.wants/rivulet-data-again.timer":   true,
		"multi-user.target.wants/remote-fs.target":       true,
		"multi-user.target.wants/nfs-client.target":      false,
		"timers.target.wants/apt-daily.timer":            false,
		"multi-user.target.wants/wpa_supplicant.service": false, // iwd has the radio
		"fstrim.timer": false, // masked
	} {
		if _, err := os.Lstat(j.in("etc/systemd/system", name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", name, err, want)
		}
	}
}

// A device has no sudo of its own: root alone signs in, and commands of the guide run with it all the same.
func TestSudoOfTheImage(t *testing.T) {
	raw, err := files.Root.ReadFile("root/usr/bin/sudo")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "sudo")
	if err := os.WriteFile(path, raw, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "A=b c", "sh", "-c", `echo "$A" "$1"; exit 3`, "sh", "d  e").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || string(out) != "b c d  e\n" {
		t.Errorf("%v: %q", err, out)
	}
	pages, err := filepath.Glob("../../../docs/guide/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%v: %d pages", err, len(pages))
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "sudo -") {
			t.Errorf("%s has sudo with an option, which a device does not know", page)
		}
	}
}

// Everything that init calls is a program of the initrd or one that the shell has.
func TestInitHasItsPrograms(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		lacking(t, "busybox")
	}
	cmd := exec.Command(busybox, "sh", "-n")
	cmd.Stdin = strings.NewReader(files.Init)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("init: %v: %s", err, out)
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range applets() {
		if !slices.Contains(strings.Fields(string(list)), a) {
			t.Errorf("busybox has no %s", a)
		}
	}
}

// A disk that does not answer has the kernel crash, with the reason; one that answers, even with an error, does not.
func TestADiskThatDoesNotAnswer(t *testing.T) {
	raw, err := files.Root.ReadFile("root/usr/lib/rivulet/disk-answers")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dd   string // in place of the program
		want string
	}{
		"it answers":         {"", ""},
		"it is full":         {"return 1", ""},
		"it does not answer": {"wait", "w\n<2>rivulet: the disk of this device (/dev/mmcblk0) has not answered for ten minutes: starting again\nc\n"},
	} {
		dir := t.TempDir()
		said, probe := filepath.Join(dir, "said"), filepath.Join(dir, "probe")
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "boot-disk"), []byte("/dev/mmcblk0\n"), 0o600), os.WriteFile(probe, bytes.Repeat([]byte("x"), 200), 0o600)); err != nil {
			t.Fatal(err)
		}
		script := strings.NewReplacer("limit=600", "limit=1", "/var/log/rivulet/probe", probe, "/run/rivulet-image", dir, " >/proc/sysrq-trigger", " >>"+said, " >/dev/kmsg", " >>"+said).Replace(string(raw))
		if c.dd != "" {
			script = "dd() { " + c.dd + "; }\n" + script
		}
		if out, err := exec.Command("sh", "-c", script).CombinedOutput(); c.want == "" && (err != nil || len(out) > 0) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		if got, _ := os.ReadFile(said); string(got) != c.want {
			t.Errorf("%s: %q", name, got)
		}
		if got, err := os.ReadFile(probe); err != nil || len(got) != 200 || c.dd == "" && got[0] == 'x' {
			t.Errorf("%s: the file is %q, %v", name, got, err)
		}
	}
}
