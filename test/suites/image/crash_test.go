package image

import (
	"os"
	"path/filepath"
	"testing"
)

// What a kernel says as it crashes is there after the start that follows: in the firmware's memory
// on UEFI, elsewhere in the machine's own.
func TestLastWordsOfAKernel(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE")
	for name, more := range firmware(t) {
		t.Run(name, func(t *testing.T) {
			if name == "uefi" {
				vars := filepath.Join(t.TempDir(), "vars.fd")
				raw, err := os.ReadFile("/usr/share/OVMF/OVMF_VARS.fd")
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(vars, raw, 0o600); err != nil {
					t.Fatal(err)
				}
				more = append(more, "-drive", "if=pflash,format=raw,file="+vars)
			}
			m := on(t, disk(t, packed, "2G"), more...)
			m.up()
			m.crash()
			m.until("rivulet status", "Kernel panic - not syncing: sysrq triggered crash")
			m.until("rivulet support -o - 2>/dev/null | tar xzO --wildcards 'rivulet-support/logs/crash/*' | grep -a -c 'sysrq triggered crash'", "^[1-9]")
			if left := m.ask("ls /sys/fs/pstore"); left != "" {
				t.Errorf("not taken out of where it was kept: %s", left)
			}
		})
	}
}

// crash crashes the kernel of a machine, which starts again and knows why.
func (m *machine) crash() {
	m.t.Helper()
	m.until("rivulet doctor --only kernel-crash", "none in the last week")
	id := m.ask(boot)
	m.run("echo c >/proc/sysrq-trigger")
	m.again(id)
	m.until("rivulet doctor --only kernel-crash", "Kernel panic - not syncing: sysrq triggered crash")
}
