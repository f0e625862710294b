package image

import (
	"crypto/rand"
	"os"
	"strings"
	"testing"

	"rivulet/image/device/layout"
)

const dataStart = layout.Start + layout.BootSize + 2*layout.RootSize

// spoil writes garbage over a part of the data partition of a disk that is off.
func spoil(t *testing.T, disk string, from, size int64) {
	t.Helper()
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	garbage := make([]byte, size)
	rand.Read(garbage)
	if _, err := f.WriteAt(garbage, dataStart+from); err != nil {
		t.Fatal(err)
	}
}

// A data partition whose begin is gone is mended out of what ext4 keeps elsewhere, and
// the device is the same. One that is garbage altogether is a device that can be asked:
// its data is in memory, it says so, it starts no cluster, and the secrets on the card stay there.
func TestDamagedData(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE")
	d := disk(t, packed, "2G")
	l := newLAN(t)
	plug := l.plug("tap0", 1)
	m := l.on(d, plug...)
	m.up()
	was := m.ask("hostname; cat /etc/machine-id; echo kept >/etc/kept; sync; sync -f /data")
	m.cut()

	spoil(t, d, 0, 16<<10) // the superblock and the first descriptors
	m = l.on(d, plug...)
	m.up()
	if got := m.ask("hostname; cat /etc/machine-id; cat /etc/kept; cat " + layout.DataFailed + " 2>/dev/null"); got != was+"\nkept" {
		t.Errorf("after a superblock of garbage: %q, want %q and what was kept", got, was)
	}
	m.cut()

	setFAT(t, d, "rivulet.yaml", "wifi: {networks: [{ssid: lab, password: "+yamlWiFi+"}]}\n")
	spoil(t, d, 0, 800<<20)
	m = l.on(d, plug...)
	m.up()
	m.until("findmnt -no FSTYPE /data", "^tmpfs$")
	if got := m.until("rivulet status", "data-in-memory"); !strings.Contains(got, "gone at the next start") {
		t.Errorf("status: %s", got)
	}
	if got := m.ask("ls /run/rivulet/engine.pid /sys/class/net/riv0 2>/dev/null | wc -l; systemctl is-active rivulet-data-again.timer"); got != "0\nactive" {
		t.Errorf("engine and tunnel, timer: %q", got)
	}
	name := m.ask("hostname")
	if page := l.page(m, name); !strings.Contains(page, "the data partition cannot be used, and no cluster runs") {
		t.Errorf("the page does not say it:\n%s", plain(page))
	}
	if got := m.ask("grep -c " + yamlWiFi + " /var/lib/iwd/lab.psk /boot/firmware/rivulet.yaml | grep -c ':1$'"); got != "2" {
		t.Errorf("the Wi-Fi's password is in %s of 2 places", got)
	}
}
