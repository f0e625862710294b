package flash

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// A PC: its own disk, a card reader with and without a card, sticks in all states,
// and things that are no disks.
func pc() Machine {
	sys := fstest.MapFS{}
	set := func(path, content string) { sys["block/"+path] = &fstest.MapFile{Data: []byte(content + "\n")} }
	add := func(name, dev, sectors, removable, vendor, model string, parts ...string) {
		set(name+"/dev", dev)
		set(name+"/size", sectors)
		set(name+"/removable", removable)
		set(name+"/ro", "0")
		set(name+"/device/vendor", vendor)
		set(name+"/device/model", model)
		for i, p := range parts {
			set(name+"/"+p+"/dev", dev[:strings.Index(dev, ":")+1]+string(rune('1'+i)))
			set(name+"/"+p+"/partition", string(rune('1'+i)))
		}
	}
	add("nvme0n1", "259:0", "1000215216", "0", "", "Samsung SSD 980  ", "nvme0n1p1", "nvme0n1p2", "nvme0n1p3")
	set("nvme0n1/nvme0n1p3/holders/dm-0/dev", "254:0")
	set("dm-0/dev", "254:0")
	set("dm-0/size", "100")
	add("sda", "8:0", "62333952", "1", "Generic ", "STORAGE DEVICE", "sda1", "sda2")
	add("sdb", "9:0", "15728640", "1", "USB", "Stick", "sdb1")
	add("sdc", "10:0", "0", "1", "Generic", "Empty reader")
	add("sdd", "11:0", "15728640", "0", "ATA", "Old disk", "sdd1")
	add("sde", "12:0", "15728640", "1", "USB", "Locked")
	set("sde/ro", "1")
	add("sdf", "13:0", "15728640", "0", "ATA", "Half of a RAID", "sdf1")
	set("sdf/sdf1/holders/md0/dev", "99:9")
	add("mmcblk0", "179:0", "30535680", "0", "", "")
	set("mmcblk0/device/type", "SD")
	set("mmcblk0/device/name", "SC16G")
	add("mmcblk1boot0", "180:0", "8192", "0", "", "")
	add("loop0", "7:0", "8192", "0", "", "")
	add("zram0", "252:0", "8192", "0", "", "")
	proc := fstest.MapFS{
		"self/mountinfo": {Data: []byte("22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/mapper/root rw\n" +
			"23 22 259:1 / /boot/efi rw - vfat /dev/nvme0n1p1 rw\n" +
			"24 22 0:41 / /media/a\\040b rw - btrfs /dev/sdb1 rw\n25 22 0:5 / /proc rw - proc proc rw\n")},
		"swaps": {Data: []byte("Filename Type Size Used Priority\n/dev/sdd1 partition 8000 0 -2\n")},
	}
	add("nvme1n1", "260:0", "15728640", "0", "", "Data disk", "nvme1n1p1", "nvme1n1p2")
	set("nvme1n1/nvme1n1p1/size", "204800")
	set("nvme1n1/nvme1n1p2/size", "15000000")
	set("nvme1n1/queue/logical_block_size", "512")
	add("nvme2n1", "261:0", "15728640", "0", "", "Native 4K")
	set("nvme2n1/queue/logical_block_size", "4096")
	add("sdg", "14:0", "15728640", "1", "USB", "Many", "sdg1", "sdg2", "sdg3", "sdg4", "sdg5", "sdg6", "sdg7", "sdg8")
	udev := fstest.MapFS{
		"b260:1": {Data: []byte("S:disk/by-uuid/1\nE:ID_FS_TYPE=vfat\nE:ID_FS_LABEL=SYSTEM\nE:ID_PART_ENTRY_NAME=EFI\n")},
		"b260:2": {Data: []byte("E:ID_FS_TYPE=BitLocker\nE:ID_PART_ENTRY_NAME=Basic\u202edata\n")},
		"b261:0": {Data: []byte("E:ID_FS_TYPE=LVM2_member\n")},
	}
	return Machine{Sys: sys, Proc: proc, Udev: udev}
}

// What a disk has on it is in the question, as far as it is known; an internal one is asked for by its name.
func TestWhatIsOnADisk(t *testing.T) {
	for dev, want := range map[string]struct {
		content  string
		internal bool
	}{
		"260:0": {`nvme1n1p1 105 MB vfat "SYSTEM", nvme1n1p2 7.7 GB BitLocker "Basic\u202edata"`, true},
		"261:0": {"LVM2_member", true},
		"179:0": {"", false},
		"14:0":  {"sdg1 0 bytes, sdg2 0 bytes, sdg3 0 bytes, sdg4 0 bytes, sdg5 0 bytes, sdg6 0 bytes, and 2 more", false},
	} {
		if d, err := pc().byNumber("/dev/x", dev); err != nil || d.Content != want.content || d.Internal() != want.internal {
			t.Errorf("%s: %q, internal %v, %v", dev, d.Content, d.Internal(), err)
		}
	}
	m := pc()
	m.Udev = nil
	if d, err := m.byNumber("/dev/x", "260:0"); err != nil || d.Content != "nvme1n1p1 105 MB, nvme1n1p2 7.7 GB" {
		t.Errorf("without udev: %q, %v", d.Content, err)
	}
}

func TestList(t *testing.T) {
	disks, err := pc().List()
	if err != nil {
		t.Fatal(err)
	}
	want := []struct{ path, model, refused string }{
		{"/dev/mmcblk0", "SC16G", ""},
		{"/dev/nvme0n1", "Samsung SSD 980", "the system runs from /dev/nvme0n1p"},
		{"/dev/nvme1n1", "Data disk", ""},
		{"/dev/nvme2n1", "Native 4K", "/dev/nvme2n1 has sectors of 4096 bytes, and an image is for those of 512; choose another disk"},
		{"/dev/sda", "Generic STORAGE DEVICE", ""},
		{"/dev/sdb", "USB Stick", "/dev/sdb1 is mounted at /media/a b; unmount it first"},
		{"/dev/sdd", "ATA Old disk", "/dev/sdd1 is swap space; switch it off first: sudo swapoff /dev/sdd1"},
		{"/dev/sde", "USB Locked", "/dev/sde is read-only; look for the lock"},
		{"/dev/sdf", "ATA Half of a RAID", "/dev/sdf1 is part of md0"},
		{"/dev/sdg", "USB Many", ""},
	}
	if len(disks) != len(want) {
		t.Fatalf("%+v", disks)
	}
	for i, w := range want {
		d := disks[i]
		if d.Path != w.path || d.Model != w.model || !strings.HasPrefix(d.Refused, w.refused) || (w.refused == "") != (d.Refused == "") || d.Size == 0 {
			t.Errorf("%+v; want %+v", d, w)
		}
	}
	if !disks[0].Removable || disks[2].Removable || !disks[4].Removable || disks[6].Removable {
		t.Error("which are removable is wrong")
	}
}

// What else than a free disk is asked for.
func TestAskedFor(t *testing.T) {
	m := pc()
	for dev, want := range map[string]string{
		"8:2":   "is a partition of /dev/sda, and an image is a whole disk; use /dev/sda",
		"8:1":   "use /dev/sda",
		"99:77": "not known to the kernel",
	} {
		if _, err := m.byNumber("/dev/x", dev); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", dev, err)
		}
	}
	if d, err := m.byNumber("/dev/disk/by-id/usb-x", "8:0"); err != nil || d.Path != "/dev/sda" || d.Refused != "" {
		t.Errorf("%+v %v", d, err)
	}
	for _, dev := range []string{"7:0", "254:0", "259:0", "9:0"} {
		d, err := m.byNumber("/dev/x", dev)
		if err != nil || d.Refused == "" || (&Image{}).Fits(d) == nil {
			t.Errorf("%s: %+v %v", dev, d, err)
		}
	}
	for _, path := range []string{"/dev/null", t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		if _, err := m.Disk(path); err == nil || !strings.Contains(err.Error(), "flash --list") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// The real thing: the disk that this machine runs from is never offered.
func TestHere(t *testing.T) {
	disks, err := Here().List()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := json.Marshal(disks); err != nil {
		t.Fatal(err)
	}
	for _, d := range disks {
		again, err := Here().Disk(d.Path)
		if os.IsNotExist(err) || err != nil && strings.Contains(err.Error(), "no such file") {
			continue // a container without /dev
		}
		if err != nil || again != d {
			t.Errorf("%+v %+v %v", d, again, err)
		}
		t.Logf("%+v", d)
	}
}
