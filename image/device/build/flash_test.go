package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"rivulet/image/device/files"
	"rivulet/image/device/layout"
	"rivulet/image/flash"
	"rivulet/image/sources"
)

// flashed is a copy of the image with identities of its own.
func (j *job) flashed(t *testing.T, name string) string {
	t.Helper()
	disk := filepath.Join(j.work, name)
	output(t, "cp", "--sparse=always", j.rawImage(), disk)
	f, err := os.OpenFile(disk, os.O_RDWR, 0)
	if err == nil {
		err = errors.Join(flash.Identify(f), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return disk
}

// identity is that of a file system on a disk.
func identity(t *testing.T, disk string, p extent) string {
	t.Helper()
	return strings.TrimSpace(output(t, "blkid", "-p", "-O", fmt.Sprint(p.begin), "-S", fmt.Sprint(p.size), "-o", "value", "-s", "UUID", disk))
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// Two disks with the same image have nothing in common by which a system takes one for the other, are whole, and each
// kernel's initrd finds the disk that the kernel came from, whichever is there first; one that was written by dd, too.
func TestTwoDisksWithTheSameImage(t *testing.T) {
	if _, err := exec.LookPath("busybox"); err != nil {
		lacking(t, "busybox")
	}
	t.Setenv("MTOOLS_SKIP_CHECK", "1")
	for _, arch := range sources.ImageArches {
		j := small(t, arch)
		disks := []string{j.rawImage(), j.flashed(t, "card"), j.flashed(t, "ssd")}
		boot, data := j.partitions()[layout.Boot-1], j.partitions()[layout.Data-1]
		seen, own, lines := map[string]string{}, [][]string{}, []string{}
		ids := regexp.MustCompile(`(?:label-id: |uuid=)([0-9A-Fa-fx-]+)`)
		for i, disk := range disks {
			all := []string{identity(t, disk, boot), identity(t, disk, data)}
			for _, id := range ids.FindAllStringSubmatch(output(t, "sfdisk", "--dump", disk), -1) {
				all = append(all, id[1])
			}
			if want := map[string]int{"amd64": 7, "arm64": 3}[arch]; len(all) != want {
				t.Errorf("%s: %s has the identities %v, want %d", arch, disk, all, want)
			}
			for _, id := range all {
				if was, twice := seen[id]; twice || id == "" {
					t.Errorf("%s: %s and %s have the identity %q", arch, was, disk, id)
				}
				seen[id] = disk
			}
			own = append(own, all)
			names := []string{"a/" + layout.SyslinuxEntry, "loader/entries/rivulet-a.conf"}
			if arch == "arm64" {
				names = []string{"a/" + layout.CommandFile}
			}
			for _, name := range names {
				text := strings.TrimSpace(output(t, "mtype", "-i", fmt.Sprintf("%s@@%d", disk, boot.begin), "::/"+name))
				if found := strings.HasSuffix(text, " "+layout.DiskWord+"="+all[0]); found != (i > 0) {
					t.Errorf("%s: %s of %s with the identity %s: %q", arch, name, disk, all[0], text)
				}
				lines = append(lines, text)
			}
			if i == 0 || t.Failed() {
				continue
			}
			whole := fmt.Sprintf("%s?offset=%d", disk, data.begin)
			output(t, "e2fsck", "-fn", whole)
			if spare := output(t, "dumpe2fs", "-h", "-o", "superblock=32768", "-o", "blocksize=4096", whole); !strings.Contains(spare, all[1]) || strings.Contains(spare, "hecksum mismatch") {
				t.Errorf("%s: the spare superblock: %s", arch, spare)
			}
			wholeFAT(t, disk, boot)
			if arch == "amd64" {
				wholeGPT(t, disk)
			}
		}
		per := len(lines) / len(disks)
		for i, line := range lines {
			mine := i / per
			others := slices.DeleteFunc([]int{2, 1, 0}, func(d int) bool { return d == mine })
			for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {mine}, others} {
				want := ""
				switch {
				case slices.Contains(order, mine):
					want = disks[mine]
				case mine == 0: // nobody knows which one it was, and a device that starts is better than a dark one
					want = disks[2]
				}
				if got := bootDisk(t, line, disks, own, order); got != want {
					t.Errorf("%s: with %q of %v: %q, want %q", arch, line, order, got, want)
				}
			}
		}
	}
}

// wholeFAT has the file system's own checker read a boot partition. The first sector differs from its copy where syslinux
// has written itself into the first.
func wholeFAT(t *testing.T, disk string, p extent) {
	t.Helper()
	part := disk + "-boot"
	output(t, "dd", "if="+disk, "of="+part, "bs=1M", fmt.Sprint("skip=", p.begin/layout.MiB), fmt.Sprint("count=", p.size/layout.MiB), "conv=sparse", "status=none")
	if out, err := exec.Command("fsck.fat", "-n", part).CombinedOutput(); err != nil && !strings.Contains(string(out), "differences between boot sector and its backup") {
		t.Errorf("%v: %s", err, out)
	}
}

// wholeGPT checks both copies of a table: the second one in place of a destroyed first one.
func wholeGPT(t *testing.T, disk string) {
	t.Helper()
	if out := output(t, "sfdisk", "--verify", disk); !strings.Contains(out, "No errors detected") {
		t.Error(out)
	}
	before := output(t, "sfdisk", "--dump", disk)
	f, err := os.OpenFile(disk, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	first := make([]byte, layout.Sector)
	if _, err := f.ReadAt(first, layout.Sector); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, layout.Sector), layout.Sector); err != nil {
		t.Fatal(err)
	}
	second, err := exec.Command("sfdisk", "--dump", disk).Output()
	if err != nil || string(second) != before {
		t.Errorf("the second table differs: %v: %s\n%s", err, before, second)
	}
	if _, err := f.WriteAt(first, layout.Sector); err != nil {
		t.Fatal(err)
	}
}

// bootDisk runs the initrd's search with a command line, and disks in the order in which they appear; empty if the initrd
// gives up.
func bootDisk(t *testing.T, command string, disks []string, own [][]string, order []int) string {
	t.Helper()
	_, search, _ := strings.Cut(files.Init, "\nSLOT= ")
	search, _, ok := strings.Cut(search, "\n# Busybox knows the options")
	_, loop, also := strings.Cut(files.Init, "\nown() {")
	loop, _, end := strings.Cut(loop, "\nname=")
	if !ok || !also || !end {
		t.Fatal("init has no search for its disk")
	}
	dir := t.TempDir()
	if err := put(filepath.Join(dir, "cmdline"), command+"\n", 0o644); err != nil {
		t.Fatal(err)
	}
	var found strings.Builder
	for _, i := range order {
		fmt.Fprintf(&found, "LABEL=%s|UUID=%s) echo %s;; ", layout.BootLabel, own[i][0], disks[i])
	}
	script := "say() { :; }\nload() { :; }\nsleep() { :; }\nmodprobe() { :; }\nfail() { exit 0; }\n" +
		"findfs() { case $1 in " + found.String() + "*) return 1;; esac; }\n" +
		strings.NewReplacer("/proc/cmdline", dir+"/cmdline", "\nload() {", "\nunused() {", "[ -b ", "[ -f ").Replace("SLOT= "+search+"\nown() {"+loop) + "\necho $BOOT"
	out, err := exec.Command("busybox", "sh", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}
