package image

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/image/device/layout"
)

// write is one of a disk's log (QEMU's blklogwrites, the format of dm-log-writes).
type write struct {
	at    int64
	data  []byte
	flush bool // what was written before is on the disk, with this one
}

// readLog takes a log apart.
func readLog(t *testing.T, path string) []write {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head := make([]byte, 512)
	if _, err := io.ReadFull(f, head); err != nil || binary.LittleEndian.Uint64(head) != 0x6a736677736872 {
		t.Fatalf("%s is no log: %v", path, err)
	}
	entries, sector := binary.LittleEndian.Uint64(head[16:]), int64(binary.LittleEndian.Uint32(head[24:]))
	if _, err := f.Seek(sector, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	var all []write
	entry := make([]byte, sector)
	for range entries {
		if _, err := io.ReadFull(f, entry); err != nil {
			t.Fatal(err)
		}
		at, n, flags := binary.LittleEndian.Uint64(entry), binary.LittleEndian.Uint64(entry[8:]), binary.LittleEndian.Uint64(entry[16:])
		w := write{at: int64(at) * sector, flush: flags&1 != 0}
		if flags&4 == 0 { // a discard has a length, but nothing that follows
			w.data = make([]byte, int64(n)*sector)
			if _, err := io.ReadFull(f, w.data); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, w)
	}
	return all
}

// Power is cut after any write of the first boot, and of what was not flushed yet only
// some sectors have reached the disk. What is left is a disk that the next boot mends
// without asking: a partition table, a FAT and a data partition with all that was flushed.
func TestACutAtAnyWrite(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE")
	first := disk(t, packed, "4G")
	start := filepath.Join(t.TempDir(), "start.img")
	tool(t, "cp", "--sparse=always", first, start)
	log := filepath.Join(t.TempDir(), "writes.log")
	tool(t, "truncate", "-s", "0", log)
	m := switchOn(t, (*exec.Cmd).Start, "-blockdev", "driver=file,node-name=file,filename="+first, "-blockdev", "driver=raw,node-name=raw,file=file",
		"-blockdev", "driver=file,node-name=logfile,filename="+log, "-blockdev", "driver=blklogwrites,node-name=logged,file=raw,log=logfile,log-super-update-interval=1",
		"-device", "virtio-blk-pci,drive=logged")
	m.up()
	m.ask("sync")
	m.cut()
	writes := readLog(t, log)
	grown, flushed := 0, 0
	for i, w := range writes {
		if grown == 0 && w.at == 0 && len(w.data) > 0 {
			grown = i // the partition table
		}
		if w.flush {
			flushed++
		}
	}
	if grown == 0 || flushed < 5 {
		t.Fatalf("%d writes, %d flushes, the partition table at %d: that is no first boot", len(writes), flushed, grown)
	}
	t.Logf("%d writes, %d flushes, the partition table at %d", len(writes), flushed, grown)

	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	var moments []int
	for range 25 { // most of them around the growth
		moments = append(moments, max(0, grown-3)+random.IntN(min(60, len(writes)-grown)))
	}
	for range 15 {
		moments = append(moments, random.IntN(len(writes)))
	}
	for _, moment := range moments {
		cut := filepath.Join(t.TempDir(), "cut.img")
		tool(t, "cp", "--sparse=always", start, cut)
		replay(t, cut, writes[:moment], random)
		if err := mend(cut); err != nil {
			t.Errorf("seed %d, cut after %d of %d writes: %v", seed, moment, len(writes), err)
		}
		os.Remove(cut)
	}
}

// replay writes what a disk with a cache of its own may have of these writes.
func replay(t *testing.T, disk string, writes []write, random *rand.Rand) {
	t.Helper()
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sure := 0
	for i, w := range writes {
		if w.flush {
			sure = i + 1
		}
	}
	for i, w := range writes {
		for at := 0; at < len(w.data); at += layout.Sector {
			if i >= sure && random.IntN(3) == 0 {
				continue
			}
			if _, err := f.WriteAt(w.data[at:at+layout.Sector], w.at+int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// mend does with a disk what the initrd does, and says what it could not.
func mend(disk string) error {
	run := func(most int, name string, args ...string) error {
		out, err := exec.Command(name, args...).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() <= most {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return nil
	}
	grow := exec.Command("sfdisk", "--no-reread", "--no-tell-kernel", "--force", "-q", "-N", "4", disk)
	grow.Stdin = strings.NewReader(", +\n")
	if out, err := grow.CombinedOutput(); err != nil {
		return fmt.Errorf("sfdisk: %w: %s", err, out)
	}
	out, err := exec.Command("sfdisk", "-d", disk).Output()
	if err != nil || strings.Count(string(out), "start=") != 4 || !strings.Contains(string(out), "rivulet-data") {
		return fmt.Errorf("the partition table: %v: %s", err, out)
	}
	data := disk + ".data"
	defer os.Remove(data)
	if err := run(0, "dd", "if="+disk, "of="+data, "bs=1M", fmt.Sprintf("skip=%d", dataStart/layout.MiB), "conv=sparse", "status=none"); err != nil {
		return err
	}
	err = run(3, "e2fsck", "-p", data)
	for range 3 { // one that has taken a spare superblock may end early, with 12
		if err != nil {
			err = run(3, "e2fsck", "-fy", data)
		}
	}
	if err != nil {
		return err
	}
	if err := run(0, "e2fsck", "-fn", data); err != nil {
		return err
	}
	boot := disk + ".boot"
	defer os.Remove(boot)
	if err := run(0, "dd", "if="+disk, "of="+boot, "bs=1M", fmt.Sprintf("skip=%d", layout.Start/layout.MiB), fmt.Sprintf("count=%d", layout.BootSize/layout.MiB), "conv=sparse", "status=none"); err != nil {
		return err
	}
	return run(1, "fsck.vfat", "-a", "-w", boot)
}
