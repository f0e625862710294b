package image

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

// boot is which start of the machine this is.
const boot = "cat /proc/sys/kernel/random/boot_id"

// again waits until the machine has started again by itself, without being asked for it.
func (m *machine) again(was string) {
	m.t.Helper()
	begun := time.Now()
	m.forget()
	m.says(`rivulet-initrd: slot a of`)
	m.forget() // the old shell's prompt
	m.t.Logf("starts again %.0f s after", time.Since(begun).Seconds())
	m.up()
	if now := m.ask(boot); now == was || len(now) != 36 {
		m.t.Errorf("boot %q, before %q", now, was)
	}
}

// What hangs is ended by who watches it: the supervisor by systemd, systemd by itself or by
// the hardware, a kernel that stands still by the hardware; and a disk that takes nothing any more is
// a reason to start the machine again.
func TestNobodyHasToSwitchItOffAndOn(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE")
	d := disk(t, packed, "2G")
	m := on(t, d)
	m.up()

	t.Log("the supervisor stands still")
	pid := m.ask("systemctl show -P MainPID rivulet.service | cat")
	id := m.ask(boot)
	begun := time.Now()
	m.ask("kill -STOP " + pid)
	await.NoError(t, t.Context(), patience, "another supervisor", func() error {
		if now := m.ask("systemctl show -P MainPID rivulet.service | cat"); now == pid || now == "0" {
			return fmt.Errorf("pid %s", now)
		}
		return nil
	})
	m.until("systemctl is-active rivulet.service", "^active$")
	t.Logf("another one runs %.0f s after", time.Since(begun).Seconds())
	if now := m.ask(boot); now != id {
		t.Errorf("the machine started again for a supervisor that can be: %s, %s", id, now)
	}

	t.Log("the kernel stands still")
	id = m.ask(boot)
	m.run("echo 0 >/proc/sys/kernel/panic; echo c >/proc/sysrq-trigger")
	m.again(id)

	t.Log("systemd crashes")
	id = m.ask(boot)
	m.run("kill -SEGV 1")
	m.again(id)

	t.Log("the disk takes nothing any more")
	m.until("rivulet status | head -n 1", ".")
	id = m.ask(boot)
	// The pauses between two starts of the supervisor grow to five minutes: not here.
	m.ask("mkdir -p /run/systemd/system/rivulet.service.d; printf '[Service]\\nRestartMaxDelaySec=2\\n' >/run/systemd/system/rivulet.service.d/test.conf; systemctl daemon-reload")
	// Which of the two it is differs by kernel; 6.12 shuts the file system down, and reading fails, too.
	if got := m.ask("echo test >/sys/fs/ext4/vda4/trigger_fs_error; touch /data/probe"); !strings.Contains(got, "Read-only file system") && !strings.Contains(got, "Input/output error") {
		t.Fatalf("the data partition after an error: %s", got)
	}
	m.run("systemctl kill -s KILL rivulet.service")
	m.again(id)
	if got := m.ask("echo ok >/data/probe && cat /data/probe"); got != "ok" {
		t.Errorf("the data partition after the start: %q", got)
	}
	if got := m.ask("cat /run/rivulet-image/fsck.log"); !strings.Contains(got, "RVDATA") {
		t.Errorf("nobody has looked at the data partition: %q", got)
	}
}
