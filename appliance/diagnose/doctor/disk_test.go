package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/image/device/layout"
)

func TestDiskSpace(t *testing.T) {
	for _, tc := range []struct {
		name string
		fs   unix.Statfs_t
		want Status
	}{
		{"roomy", disk(50, 50), Pass}, {"images are deleted", disk(14, 50), Warn}, {"pods are thrown out", disk(4, 50), Fail},
		{"few inodes", disk(50, 4), Warn}, {"no inodes", disk(50, 0), Fail},
		{"small", unix.Statfs_t{Bsize: 4096, Blocks: 100 << 8, Bavail: 90 << 8, Files: 100, Ffree: 90}, Fail},
		{"no inodes to run out of (btrfs)", unix.Statfs_t{Bsize: 4096, Blocks: 1 << 20, Bavail: 1 << 19}, Pass},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := machine(t, nil)
			e.statfs = func(string) (unix.Statfs_t, error) { return tc.fs, nil }
			found(t, e, diskSpace, tc.want)
		})
	}
	e := machine(t, nil)
	e.statfs = func(string) (unix.Statfs_t, error) { return unix.Statfs_t{}, unix.EIO }
	found(t, e, diskSpace, Fail, "dmesg")
}

// A machine whose state is on a big disk, with the kubelet's folder on the small one and logs in memory.
func TestOtherFileSystems(t *testing.T) {
	const root, log = "/dev/root / ext4 rw 0 0\n/dev/sda1 /var/lib/rivulet ext4 rw 0 0\n", "/var/log tmpfs rw 0 0\n"
	for _, tc := range []struct {
		name       string
		tree       files
		full, logs unix.Statfs_t // of / and of /var/log
		space, log Status
		words      string
	}{
		{"room everywhere", files{"/proc/mounts": root}, disk(50, 50), disk(50, 50), Pass, Pass, "free"},
		{"emptyDirs fill the card", files{"/proc/mounts": root, "/var/lib/kubelet/x": ""}, disk(4, 50), disk(50, 50), Fail, Fail, "journalctl"},
		{"emptyDirs are about to", files{"/proc/mounts": root, "/var/lib/kubelet/x": ""}, disk(14, 50), disk(50, 50), Warn, Pass, "free"},
		{"log2ram", files{"/proc/mounts": root + "log2ram " + log, "/etc/log2ram.conf": "", "/var/log/x": ""}, disk(50, 50), small(90), Pass, Warn, "systemctl disable log2ram"},
		{"Armbian", files{"/proc/mounts": root + "/dev/zram1 /var/log ext4 rw 0 0\n", "/etc/default/armbian-ramlog": "", "/var/log/x": ""}, disk(50, 50), small(90), Pass, Warn, "/etc/default/armbian-ramlog; reboot"},
		{"DietPi, full", files{"/proc/mounts": root + "tmpfs " + log, "/var/log/x": ""}, disk(50, 50), small(3), Pass, Fail, "du -xh /var/log"},
		{"DietPi", files{"/proc/mounts": root + "tmpfs " + log, "/var/log/x": ""}, disk(50, 50), small(90), Pass, Warn, "take /var/log out of /etc/fstab"},
		{"a small partition", files{"/proc/mounts": root + "/dev/sda2 /var/log ext4 rw 0 0\n", "/var/log/x": ""}, disk(50, 50), small(90), Pass, Warn, "give /var/log a bigger disk"},
		{"a card that cannot be used", files{"/proc/mounts": "tmpfs /var/lib/rivulet tmpfs rw 0 0\ntmpfs " + log, "/var/log/x": ""}, disk(50, 50), small(90), Pass, Skip, "in memory, too"},
		{"the same disk", files{"/proc/mounts": root + "/dev/sda1 /var/lib/kubelet ext4 rw 0 0\n/dev/sda1 /var/log/pods ext4 rw 0 0\n", "/var/lib/kubelet/x": "", "/var/log/pods/x": ""},
			disk(0, 50), disk(0, 50), Pass, Pass, "on the disk of /var/lib/rivulet"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.tree["/var/lib/rivulet/state.db"] = ""
			e := machine(t, tc.tree)
			e.statfs = func(path string) (unix.Statfs_t, error) {
				switch path {
				case e.path("/var/lib/rivulet"):
					return disk(50, 50), nil
				case e.path("/var/log"):
					return tc.logs, nil
				}
				return tc.full, nil
			}
			found(t, e, diskSpace, tc.space)
			found(t, e, logSpace, tc.log, tc.words)
		})
	}
}

// small is a file system of 40 MB.
func small(free uint64) unix.Statfs_t {
	return unix.Statfs_t{Bsize: 4096, Blocks: 10 << 10, Bavail: (10 << 10) * free / 100}
}

func TestDiskSpeed(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		slowest, rest time.Duration
		want          Status
	}{{9 * ms, ms, Pass}, {120 * ms, 2 * ms, Warn}, {1200 * ms, 2 * ms, Fail}} {
		e := machine(t, nil)
		e.fsync = func(context.Context, string, int) ([]time.Duration, error) {
			return []time.Duration{tc.slowest, tc.rest, tc.rest, tc.rest}, nil
		}
		found(t, e, diskSpeed, tc.want, tc.slowest.String())
	}
	for err, want := range map[error]Status{fs.ErrPermission: Skip, unix.EROFS: Fail, unix.ENOSPC: Fail, nil: Skip} {
		e := machine(t, nil)
		e.fsync = func(context.Context, string, int) ([]time.Duration, error) { return nil, err }
		found(t, e, diskSpeed, want)
	}
	e := machine(t, nil)
	e.statfs = func(string) (unix.Statfs_t, error) { return unix.Statfs_t{Type: unix.TMPFS_MAGIC}, nil }
	found(t, e, diskSpeed, Skip, "memory")
}

// The real thing leaves nothing behind, and ends when it is told to.
func TestFsync(t *testing.T) {
	dir := t.TempDir()
	took, err := system{}.Fsync(t.Context(), dir, 8)
	if err != nil || len(took) != 8 {
		t.Errorf("%d blocks, %v", len(took), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if took, err := (system{}).Fsync(ctx, dir, 1000); err != nil || len(took) != 1 {
		t.Errorf("called off: %d blocks, %v", len(took), err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := (system{}).Fsync(t.Context(), dir+"/none", 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

func TestFilesystem(t *testing.T) {
	const mounts = "/dev/root / ext4 rw,noatime 0 0\n/dev/sda1 /var/lib/rivulet ext4 ro 0 0\n/dev/sdb1 /my\\040disk ext4 ro 0 0\n"
	found(t, machine(t, files{"/proc/mounts": "/dev/root / ext4 rw 0 0\n/dev/sdb1 /var/libx ext4 ro 0 0\n"}), filesystem, Pass, "/ (ext4)")
	found(t, machine(t, files{"/proc/mounts": mounts, "/var/lib/rivulet/state.db": ""}), filesystem, Fail, "/var/lib/rivulet (/dev/sda1) can only be read")
	found(t, machine(t, files{"/proc/mounts": "/dev/root / ext4 rw 0 0\n", "/sys/fs/ext4/mmcblk0p2/errors_count": "3\n", "/sys/fs/ext4/sda1/errors_count": "0\n"}),
		filesystem, Fail, "mmcblk0p2: 3")
	found(t, machine(t, files{"/proc/mounts": "/dev/root / ext4 rw 0 0\n/dev/sda2 /var ext4 rw,nosuid,noexec 0 0\n", "/var/lib/rivulet/state.db": ""}), filesystem, Fail, "/var (/dev/sda2) is mounted noexec", "mount -o remount,exec /var")
	found(t, machine(t, nil), filesystem, Skip)
	if m, ok := machine(t, files{"/proc/mounts": mounts}).mountOf("/my disk/x"); !ok || m.device != "/dev/sdb1" {
		t.Errorf("a mount with a space in its name: %+v", m)
	}
}

func TestCardLife(t *testing.T) {
	card := func(life, eol string) files {
		return files{"/sys/block/mmcblk0/device/life_time": life, "/sys/block/mmcblk0/device/pre_eol_info": eol}
	}
	for _, tc := range []struct {
		tree  files
		want  Status
		words string
	}{
		{nil, Skip, "no card"},
		{files{"/sys/block/mmcblk0/device/type": "SD"}, Skip, "mmcblk0 does not tell"},
		{card("0x01 0x02\n", "0x01\n"), Pass, "mmcblk0: 10 to 20 % used"},
		{card("0x01 0x09", "0x01"), Warn, "80 %"},
		{card("0x03 0x03", "0x02"), Warn, "rivulet backup"},
		{card("0x0b 0x01", "0x01"), Fail, "reached"},
		{card("0x03 0x03", "0x03"), Fail, "reached"},
		{card("0x00 0x00", "0x00"), Skip, "does not tell"},
	} {
		found(t, machine(t, tc.tree), cardLife, tc.want, tc.words)
	}
}

func TestSwap(t *testing.T) {
	const head = "Filename\tType\tSize\tUsed\tPriority\n"
	found(t, machine(t, files{"/proc/swaps": head}), swap, Pass, "none")
	found(t, machine(t, files{"/proc/swaps": head + "/dev/zram0 partition 1 0 100\n"}), swap, Pass, "zram0")
	found(t, machine(t, files{"/proc/swaps": head + "/dev/mmcblk0p3 partition 1 0 -2\n"}), swap, Warn)
	found(t, machine(t, files{"/proc/swaps": head + "/var/swap file 1 0 -2\n", "/proc/mounts": "/dev/mmcblk0p2 / ext4 rw 0 0\n"}), swap, Warn, "dphys-swapfile")
	found(t, machine(t, files{"/proc/swaps": head + "/var/swap file 1 0 -2\n", "/proc/mounts": "/dev/sda2 / ext4 rw 0 0\n"}), swap, Pass)
}

func TestOSDisks(t *testing.T) {
	for out, want := range map[string]Status{
		`{"blockdevices":[{"name":"mmcblk0","type":"disk","children":[{"name":"mmcblk0p2","type":"part","uuid":"1","fstype":"ext4"}]}]}`: Pass,
		`{"blockdevices":[{"name":"mmcblk0","type":"disk","children":[{"name":"mmcblk0p2","type":"part","uuid":"1","fstype":"ext4"}]},
		  {"name":"sda","type":"disk","children":[{"name":"sda2","type":"part","uuid":"1","fstype":"ext4"}]}]}`: Warn,
		`{"blockdevices":[{"name":"sda1","type":"part","uuid":"1","fstype":"linux_raid_member","children":[{"name":"md0","type":"raid1","uuid":"2","fstype":"ext4"}]},
		  {"name":"sdb1","type":"part","uuid":"1","fstype":"linux_raid_member","children":[{"name":"md0","type":"raid1","uuid":"2","fstype":"ext4"}]}]}`: Pass,
		`nonsense`: Skip,
	} {
		e := machine(t, nil)
		e.exec = says(map[string]string{"lsblk -J -o NAME,TYPE,UUID,FSTYPE": out})
		found(t, e, osDisks, want)
		if want == Warn {
			found(t, e, osDisks, want, "tune2fs")
			e = machine(t, files{layout.RunSlot: "a\n"})
			e.exec = says(map[string]string{"lsblk -J -o NAME,TYPE,UUID,FSTYPE": out})
			found(t, e, osDisks, want, "rivulet flash")
		}
	}
	found(t, machine(t, nil), osDisks, Skip)
}

func TestPower(t *testing.T) {
	pi := files{"/proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\x00"}
	volt := func(alarm string) files {
		return with(pi, files{"/sys/class/hwmon/hwmon1/name": "rpi_volt\n", "/sys/class/hwmon/hwmon1/in0_lcrit_alarm": alarm})
	}
	for _, tc := range []struct {
		tree      files
		throttled string
		want      Status
	}{
		{nil, "", Skip}, {pi, "", Skip}, {volt("0"), "", Pass}, {volt("1"), "", Fail},
		{pi, "throttled=0x0\n", Pass}, {pi, "throttled=0x50005\n", Fail}, {volt("0"), "throttled=0x50000\n", Warn},
		{with(pi, files{"/sys/devices/platform/soc/soc:firmware/get_throttled": "50005\n"}), "", Fail},
	} {
		e := machine(t, tc.tree)
		if tc.throttled != "" {
			e.exec = says(map[string]string{"vcgencmd get_throttled": tc.throttled})
		}
		found(t, e, power, tc.want)
	}
}

func TestTemperature(t *testing.T) {
	const zone = "/sys/class/thermal/thermal_zone0/"
	at := func(temp string) files { return files{zone + "temp": temp, zone + "type": "cpu-thermal"} }
	pc := func(temp string) files {
		return with(at(temp), files{zone + "trip_point_0_type": "critical", zone + "trip_point_0_temp": "105000"})
	}
	for _, tc := range []struct {
		tree files
		want Status
	}{
		{nil, Skip}, {at("45000\n"), Pass}, {at("81000"), Warn}, {at("86000"), Fail},
		{pc("90000"), Pass}, {pc("96000"), Warn}, {pc("105000"), Fail},
		{with(pc("86000"), files{"/proc/device-tree/model": "Raspberry Pi 5"}), Fail},
	} {
		found(t, machine(t, tc.tree), temperature, tc.want)
	}
}
