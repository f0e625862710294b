package image

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/image/device/layout"
	"rivulet/test/harness/await"
)

// firmware is what a machine starts with: SeaBIOS by itself, or UEFI.
func firmware(t *testing.T) map[string][]string {
	all := map[string][]string{"bios": nil}
	const code = "/usr/share/OVMF/OVMF_CODE.fd"
	if _, err := os.Stat(code); err == nil {
		all["uefi"] = []string{"-drive", "if=pflash,format=raw,readonly=on,file=" + code}
	}
	return all
}

// A card out of the box: it comes up by both loaders, its data partition has grown,
// nothing else can be written for good, and after a power cut it is the same device.
func TestOutOfTheBox(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE")
	for name, more := range firmware(t) {
		t.Run(name, func(t *testing.T) {
			d := disk(t, packed, "4G")
			m := on(t, d, more...)
			m.up()
			for _, c := range []struct{ ask, want string }{
				{"findmnt -no FSTYPE /", "squashfs"},
				{"findmnt -no FSTYPE /data", "ext4"},
				{"touch /usr/x 2>&1 | grep -o 'Read-only file system'", "Read-only file system"},
				{"touch /boot/firmware/x 2>&1 | grep -o 'Read-only file system'", "Read-only file system"},
				{"cat /run/rivulet-image/slot", "a"},
				{"ls /run/rivulet-image/data-failed 2>/dev/null | wc -l", "0"},
				{"tail -n +2 /proc/swaps | wc -l", "0"},
				{"grep -cw memory /sys/fs/cgroup/cgroup.controllers", "1"},
				{"test $(df -BM --output=size /data | tail -n 1 | tr -dc 0-9) -gt 2300 && echo grown", "grown"},
				{"findmnt -no SOURCE --target /var/lib/rivulet | grep -c '4.*lib/rivulet'", "1"},
				{"systemctl --failed --no-legend | wc -l", "0"},
				{"systemctl is-active ssh.service", "inactive"},
				{"cut -d: -f2 /etc/shadow | grep -vc '^[*!]'", "0"},
				{"systemctl show -P RuntimeWatchdogUSec | cat", "15s"},
				{"findmnt -no SOURCE --target /mnt | grep -c '4.*mnt'; mkdir /mnt/nas", "1"},
				{"command -v mount.nfs mount.cifs | wc -l", "2"},
				{"modinfo -n nfsv4 cifs exfat ntfs3 | wc -l", "4"},
				{"systemctl is-enabled fstrim.timer remote-fs.target | uniq", "enabled"},
				{"systemctl start fstrim.service; systemctl show -P Result fstrim.service", "success"},
				{"systemctl is-active systemd-sysusers.service", "active"},
				{"sudo A=b sh -c 'echo $A'", "b"},
			} {
				if got := m.ask(c.ask); got != c.want {
					t.Errorf("%s: %q, want %q", c.ask, got, c.want)
				}
			}
			m.tellWhen("status-page")
			id := m.ask("cat /etc/machine-id")
			if len(id) != 32 {
				t.Errorf("machine-id: %q", id)
			}
			m.ask("echo kept >/etc/kept; echo gone >/var/gone; sync")
			m.cut()

			m = on(t, d, more...)
			m.up()
			if got := m.ask("cat /etc/machine-id /etc/kept; ls /var/gone 2>/dev/null"); got != id+"\nkept" {
				t.Errorf("after a power cut: %q, want %s and what was kept", got, id)
			}
		})
	}
}

// A PC as it is sold: Secure Boot is on, with the keys of Microsoft. The image starts without a change of the firmware,
// its kernel has the drivers that it needs, and what a kernel says as it crashes can still be kept.
func TestSecureBoot(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE")
	const dir = "/usr/share/OVMF/OVMF_"
	raw, err := os.ReadFile(dir + "VARS_4M.ms.fd")
	if err != nil {
		t.Skipf("needs the package ovmf: %v", err)
	}
	vars := filepath.Join(t.TempDir(), "vars.fd")
	if err := os.WriteFile(vars, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	m := on(t, disk(t, packed, "2G"), "-global", "driver=cfi.pflash01,property=secure,value=on",
		"-drive", "if=pflash,format=raw,readonly=on,file="+dir+"CODE_4M.secboot.fd", "-drive", "if=pflash,format=raw,file="+vars)
	m.up()
	for _, c := range []struct{ ask, want string }{
		{"dmesg | grep -o 'Secure boot enabled'", "Secure boot enabled"},
		{"grep -c '^efi_pstore ' /proc/modules", "1"},
		{"ls /boot/firmware/loader/entries", layout.EntryName(layout.A, false)},
		{"ls /usr/lib/firmware | grep -c ucode", "0"},
	} {
		if got := m.ask(c.ask); got != c.want {
			t.Errorf("%s: %q, want %q", c.ask, got, c.want)
		}
	}
	m.tellWhen("status-page")
}

// Power is cut as soon as the machine says something of its first boot, and once more
// at the next thing it says; then it is left alone and comes up.
func TestPowerCutsInTheFirstBoot(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE")
	d := disk(t, packed, "4G")
	for _, moment := range []string{`rivulet-initrd: slot a of`, `the data partition grows`, `systemd\[1\]|Welcome to`} {
		m := on(t, d)
		m.says(moment)
		m.cut()
	}
	m := on(t, d)
	m.up()
	if got := m.ask("test $(df -BM --output=size /data | tail -n 1 | tr -dc 0-9) -gt 2300 && echo grown; cat /run/rivulet-image/data-failed 2>/dev/null"); got != "grown" {
		t.Errorf("the data partition after the cuts: %q", got)
	}
}

// A slot whose tries are used up gives way to the good one, without anybody's help:
// on machines where no loader counts, the initrd does.
func TestTriesAreUsedUp(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE")
	d := disk(t, packed, "2G")
	// Slot a plays the new one; b, the good one, is empty here: what counts is that it is asked for.
	setFAT(t, d, layout.ChoiceFile, string(layout.Choice{Load: layout.A, Good: layout.B, Try: layout.A, Tries: 1}.Encode(layout.Syslinux)))
	m := on(t, d, "-no-reboot")
	m.says("slot a is tried, 0 tries are left")
	m.cut()
	m = on(t, d, "-no-reboot")
	m.says("slot b comes back")
	await.NoError(t, t.Context(), patience, "the machine ends", func() error { return m.cmd.Wait() })
	c, err := layout.DecodeChoice([]byte(fat(t, d, layout.ChoiceFile)))
	if err != nil || c != (layout.Choice{Load: layout.B, Good: layout.B}) {
		t.Errorf("%+v, %v", c, err)
	}
}

// Where the firmware's loader does not count either (BIOS), a slot whose kernel does not even
// come to its initrd is started by syslinux for once, and the good one's initrd counts.
func TestAKernelThatDoesNotStart(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE")
	entry := func(kernel string) string {
		return "LABEL b\n LINUX " + kernel + "\n INITRD /a/initrd\n APPEND rivulet.slot=b console=ttyS0,115200\n"
	}
	armed := layout.Choice{Load: layout.A, Good: layout.A, Try: layout.B, Tries: layout.Tries}
	begin := func(t *testing.T, kernel string) string {
		d := disk(t, packed, "2G")
		setFAT(t, d, "b/linux", strings.Repeat("no kernel\n", 1000))
		setFAT(t, d, "b/entry.cfg", entry(kernel))
		setFAT(t, d, "b/"+layout.OnceFile, string(layout.Once(layout.B)))
		setFAT(t, d, layout.ChoiceFile, string(armed.Encode(layout.Syslinux)))
		return d
	}
	choice := func(t *testing.T, d string, want layout.Choice) {
		t.Helper()
		if c, err := layout.DecodeChoice([]byte(fat(t, d, layout.ChoiceFile))); err != nil || c != want {
			t.Errorf("%+v, %v; want %+v", c, err, want)
		}
	}
	t.Run("it is asked for until its tries are used up", func(t *testing.T) {
		d := begin(t, "/b/linux")
		m := on(t, d)
		for range layout.Tries - 1 {
			m.says("slot b did not come up; it is to start once more")
			m.forget()
		}
		m.says(`systemd\[1\]|Welcome to`)
		m.cut()
		armed := armed
		armed.Tries = 1
		choice(t, d, armed)
		if raw := fat(t, d, layout.SyslinuxFile); !strings.HasSuffix(raw, string(layout.Once(0))) {
			t.Error("syslinux has not wiped what it was to start once")
		}
	})
	t.Run("one that is good starts", func(t *testing.T) {
		d := begin(t, "/a/linux")
		m := on(t, d, "-no-reboot")
		m.says("slot b did not come up; it is to start once more") // not asked for yet: as after a power cut
		await.NoError(t, t.Context(), patience, "the machine ends", func() error { return m.cmd.Wait() })
		m = on(t, d)
		m.says("slot b is tried, 1 tries are left")
		m.cut()
		armed := armed
		armed.Load, armed.Tries = layout.B, 1
		choice(t, d, armed)
	})
	t.Run("a syslinux that does not do it", func(t *testing.T) {
		d := begin(t, "/a/linux")
		// The loader's own sectors are not those of the file any more.
		core := fat(t, d, layout.SyslinuxFile)
		tool(t, "mmove", "-i", fmt.Sprintf("%s@@%d", d, int64(layout.Start)), "::/"+layout.SyslinuxFile, "::/b/elsewhere")
		setFAT(t, d, layout.SyslinuxFile, strings.TrimSuffix(core, string(layout.Once(0)))+string(layout.Once(layout.B)))
		m := on(t, d)
		m.says("slot b did not come up; it is to start once more")
		m.says("slot b is tried, 2 tries are left")
		m.cut()
		armed := armed
		armed.Load, armed.Tries = layout.B, 2
		choice(t, d, armed)
	})
}
