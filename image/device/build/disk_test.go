package main

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/image/device/layout"
	"rivulet/image/sources"
)

// lacking skips a test for want of a program, but not in make test, which has installed it.
func lacking(t *testing.T, program string) {
	t.Helper()
	if os.Getenv("RIVULET_BIN") != "" {
		t.Fatalf("there is no %s, which make deps installs; is it still in test/deps?", program)
	}
	t.Skipf("needs %s: make deps", program)
}

// small is a job whose root and kernels are a few bytes: everything but the packages.
func small(t *testing.T, arch string) *job {
	t.Helper()
	for _, tool := range []string{"mkfs.vfat", "mcopy", "mke2fs", "sfdisk"} {
		if _, err := exec.LookPath(tool); err != nil && !exists("/usr/sbin/"+tool) {
			lacking(t, tool)
		}
	}
	if arch == "amd64" && !exists("/usr/lib/syslinux/mbr/gptmbr.bin") {
		lacking(t, "syslinux")
	}
	work := t.TempDir()
	j := &job{arch: arch, version: "v1", kernel: "6.1", work: work, root: work + "/root", fat: work + "/fat", slot: work + "/slot", epoch: time.Unix(1_700_000_000, 0).UTC()}
	content := map[string]string{
		"vmlinuz": program(t, "kernel", debianCA), "slot/initrd": "initrd", "root.squashfs": strings.Repeat("root", 5000),
		"root/usr/lib/shim/shimx64.efi.signed":                     program(t, "shim of "+debianCA, "Microsoft UEFI CA"),
		"root/usr/lib/systemd/boot/efi/systemd-bootx64.efi.signed": program(t, "loader", debianCA),
	}
	if arch == "arm64" {
		smallPi(t, content)
	} else {
		for name, from := range map[string]string{"usr/bin/syslinux": "/usr/bin/syslinux", "usr/lib/SYSLINUX/gptmbr.bin": "/usr/lib/syslinux/mbr/gptmbr.bin"} {
			raw, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			content["root/"+name] = string(raw)
		}
	}
	for name, text := range content {
		if err := put(filepath.Join(work, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []func() error{j.bios, j.boot, j.disk} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if exists(j.in("usr/bin/syslinux")) || exists(j.in("usr/lib/SYSLINUX")) {
		t.Error("the root still has syslinux")
	}
	return j
}

// program is the least that is a program for UEFI, with a table of signatures that names a signer; without one if that
// is empty.
func program(t *testing.T, content, signer string) string {
	t.Helper()
	var out bytes.Buffer
	out.WriteString("MZ" + strings.Repeat("\x00", 58) + "\x40\x00\x00\x00PE\x00\x00")
	h := pe.OptionalHeader64{Magic: 0x20b, NumberOfRvaAndSizes: 16}
	size := binary.Size(h)
	at := out.Len() + binary.Size(pe.FileHeader{}) + size
	h.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_SECURITY] = pe.DataDirectory{VirtualAddress: uint32(at + len(content)), Size: uint32(len(signer))}
	for _, part := range []any{pe.FileHeader{Machine: pe.IMAGE_FILE_MACHINE_AMD64, SizeOfOptionalHeader: uint16(size)}, h} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return out.String() + content + signer
}

// A PC with Secure Boot starts what is signed by whom it trusts; an image without that is not published.
func TestSignaturesOfAPC(t *testing.T) {
	j := small(t, "amd64")
	if err := j.check(); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string][]string{
		layout.Shim: {"", "text", program(t, debianCA, ""), program(t, debianCA, debianCA), program(t, "another's", "Microsoft")},
		layout.UEFI: {program(t, "loader", ""), program(t, debianCA, "somebody"), program(t, "", debianCA)[:340]},
		"a/linux":   {program(t, "kernel", ""), "\x7fELF"},
	} {
		path := filepath.Join(j.fat, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, content := range append(bad, string(good)) {
			if err := put(path, content, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := j.check(); (err == nil) != (content == string(good)) || err != nil && !strings.Contains(err.Error(), name) {
				t.Errorf("%s of %.20q: %v", name, content, err)
			}
		}
	}
}

// The microcode of both makers is an archive before the initrd's, as the kernel and the processors want it, and nowhere else.
func TestMicrocode(t *testing.T) {
	root := t.TempDir()
	j := &job{arch: "amd64", root: root + "/root", work: root, epoch: time.Unix(1_700_000_000, 0)}
	for name, content := range map[string]string{"intel-ucode/06-0f-02": "intel1", "intel-ucode/06-3a-09.initramfs": "intel2", "amd-ucode/microcode_amd.bin": "amd"} {
		if err := put(j.in("usr/lib/firmware", name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var archive bytes.Buffer
	if err := j.microcode(&archive); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"GenuineIntel.bin": "intel1intel2", "AuthenticAMD.bin": "amd"} {
		named := bytes.Index(archive.Bytes(), []byte("kernel/x86/microcode/"+name+"\x00"))
		if at := bytes.Index(archive.Bytes(), []byte(content)); named < 0 || at < named || at%16 != 0 {
			t.Errorf("%s is at %d, its content at %d", name, named, at)
		}
	}
	if left, _ := filepath.Glob(j.in("usr/lib/firmware/*")); len(left) > 0 {
		t.Errorf("also in the root: %v", left)
	}
	if err := j.microcode(&archive); err == nil || !strings.Contains(err.Error(), "packages.list") {
		t.Errorf("none: %v", err)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		lacking(t, "busybox")
	}
	cmd := exec.Command(busybox, "cpio", "-t")
	cmd.Stdin = &archive
	if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "kernel/x86/microcode/GenuineIntel.bin\n") {
		t.Errorf("%s, %v", out, err)
	}
	if archive.Reset(); (&job{arch: "arm64"}).microcode(&archive) != nil || archive.Len() > 0 {
		t.Error("microcode for a Raspberry Pi")
	}
}

// read takes a file off the boot partition of an image.
func (j *job) read(t *testing.T, name string) string {
	t.Helper()
	cmd := exec.Command("mtype", "-i", fmt.Sprintf("%s@@%d", j.rawImage(), int64(layout.Start)), "::/"+name)
	cmd.Env = append(os.Environ(), "MTOOLS_SKIP_CHECK=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(out)
}

// Everything that a loader looks for is on the boot partition, and leads to slot a.
func TestBootPartitionOfAPC(t *testing.T) {
	j := small(t, "amd64")
	for name, want := range map[string]string{
		layout.Shim: "shim of", layout.UEFI: "loader", "a/linux": "kernel", "a/initrd": "initrd",
		"a/entry.cfg": "LABEL a\n LINUX /a/linux\n INITRD /a/initrd\n APPEND rivulet.slot=a ", "loader/entries/rivulet-a.conf": "\nversion 1\nlinux /a/linux\n",
		"syslinux/syslinux.cfg": "INCLUDE /slot.cfg", "syslinux/ldlinux.sys": "", layout.ChoiceFile: "DEFAULT a\n# rivulet good=a try=- tries=0\n",
	} {
		if got := j.read(t, name); !strings.Contains(got, want) || strings.Contains(got, "@SLOT@") {
			t.Errorf("%s: %.200q", name, got)
		}
	}
	if got := len(j.read(t, layout.ChoiceFile)); got != layout.Sector {
		t.Errorf("%s has %d bytes", layout.ChoiceFile, got)
	}
	sector := make([]byte, 2*layout.Sector)
	f, err := os.Open(j.rawImage())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(sector, 0); err != nil || sector[0] == 0 || string(sector[510:512]) != "\x55\xaa" || string(sector[512:520]) != "EFI PART" {
		t.Errorf("%v: no boot code or no GPT: % x", err, sector[:16])
	}
	found := make([]byte, 4)
	if _, err := f.ReadAt(found, layout.Start+layout.BootSize); err != nil || string(found) != "root" {
		t.Errorf("slot a begins with %q, %v", found, err)
	}
}

// The same inputs make the same disk, a little later and in another folder.
func TestDiskIsReproducible(t *testing.T) {
	for _, arch := range sources.ImageArches {
		one := small(t, arch)
		// FAT's times have steps of two seconds.
		time.Sleep(2100 * time.Millisecond)
		two := small(t, arch)
		// Of the disk what is not one of its partitions.
		for name, limit := range map[string]int64{"boot.vfat": 8 * layout.MiB, "data.ext4": layout.DataSize, "disk.img": layout.Start} {
			if at := differ(t, filepath.Join(one.work, name), filepath.Join(two.work, name), limit); at >= 0 {
				t.Errorf("%s: %s differs at %d", arch, name, at)
			}
		}
	}
}

// The data partition's superblock was half written when the power went, before it ever grew.
func TestTornSuperblock(t *testing.T) {
	data := filepath.Join(small(t, "amd64").work, "data.ext4")
	f, err := os.OpenFile(data, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, layout.Sector), 1024); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var said []byte
	for range 3 { // as often as the initrd
		if said, err = exec.Command("e2fsck", "-fy", data).CombinedOutput(); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
}

// differ is the first byte before the limit in which two files differ, or -1.
func differ(t *testing.T, a, b string, limit int64) int64 {
	t.Helper()
	x, err := os.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	y, err := os.Open(b)
	if err != nil {
		t.Fatal(err)
	}
	defer y.Close()
	p, q, at := make([]byte, 1<<20), make([]byte, 1<<20), int64(0)
	for {
		if at >= limit {
			return -1
		}
		n, _ := x.Read(p)
		m, _ := y.ReadAt(q[:n], at)
		if n != m || !bytes.Equal(p[:n], q[:m]) {
			for i := range min(n, m) {
				if p[i] != q[i] {
					return at + int64(i)
				}
			}
			return at + int64(min(n, m))
		}
		if n == 0 {
			return -1
		}
		at += int64(n)
	}
}
