package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/lifecycle"
	"rivulet/image/device/card"
	"rivulet/test/harness/await"
)

// The card of the Raspberry Pi in a machine that QEMU makes up (-M virt): kernel,
// initrd and command line are those of its boot partition, the disk is the image as
// it is, on a card of 4 GB. What is not tried so is the firmware before the kernel
// (card_test.go) and the board's own drivers.
func TestRaspberryPiImageInAnEmulator(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE_ARM64")
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk.img")
	tool(t, "zstd", "-q", "-d", "--sparse", packed, "-o", disk)
	files, found, err := card.Image(disk)
	if err != nil || len(found) > 0 {
		t.Fatalf("%v, %v", err, found)
	}
	tool(t, "truncate", "-s", "4G", disk)
	kernel, initrd := filepath.Join(dir, "kernel"), filepath.Join(dir, "initrd")
	for name, raw := range map[string][]byte{kernel: gunzip(t, files["a/kernel8.img"]), initrd: files["a/initrd"]} {
		if err := os.WriteFile(name, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Not beside ttyAMA10: of two ports of one driver the kernel tries the first, and takes none if there is no such.
	line := strings.NewReplacer("console=ttyAMA10,115200 console=ttyS1,115200 console=tty1", "console=ttyAMA0", "quiet systemd.show_status=auto", "systemd.show_status=no systemd.debug_shell=ttyAMA0").
		Replace(strings.TrimSpace(string(files["a/cmdline.txt"])))
	if !strings.Contains(line, "debug_shell") || !strings.Contains(line, "console=ttyAMA0") {
		t.Fatalf("cmdline.txt: %s", line)
	}
	began := time.Now()
	// No network leads out of it.
	m := switchOnA(t, "qemu-system-aarch64", (*exec.Cmd).Start, "-M", "virt", "-cpu", "cortex-a72", "-smp", "2", "-m", "3072", "-kernel", kernel, "-initrd", initrd, "-append", line,
		"-drive", "if=none,id=card,format=raw,cache=writethrough,file="+disk, "-device", "virtio-blk-device,drive=card", "-device", "virtio-rng-device",
		"-netdev", "user,id=lan,restrict=on", "-device", "virtio-net-device,netdev=lan")
	m.says(`rivulet-initrd: slot a of`)
	m.says(`rivulet-initrd: the data partition grows`)
	m.up()
	t.Logf("rivulet.service is active after %.0f s", time.Since(began).Seconds())
	for _, c := range []struct{ ask, want string }{
		{"uname -m", "aarch64"},
		{"findmnt -no FSTYPE /", "squashfs"},
		{"findmnt -no FSTYPE /data", "ext4"},
		{"ls /run/rivulet-image/data-failed 2>/dev/null | wc -l", "0"},
		{"test $(df -BM --output=size /data | tail -n 1 | tr -dc 0-9) -gt 2300 && echo grown", "grown"},
		{"tail -n +2 /proc/swaps | wc -l", "0"},
		{"grep -cw memory /sys/fs/cgroup/cgroup.controllers", "1"},
		{"systemctl is-active ssh.service", "inactive"},
		{"cut -d: -f2 /etc/shadow | grep -vc '^[*!]'", "0"},
		{"cat /etc/machine-id | tr -d '\\n' | wc -c", "32"},
		{"busybox wget -qO- http://127.0.0.1/ | grep -ci '<html' | sed 's/^[1-9].*/page/'", "page"},
	} {
		if got := m.ask(c.ask); got != c.want {
			t.Errorf("%s: %q, want %q", c.ask, got, c.want)
		}
	}
	// The service says how far it is. What needs no cluster is there soon; how far the
	// cluster comes in ten minutes of emulation is told, not demanded.
	must := []string{"api", "config", "clock", "lans", "bundle"}
	ready := func(st []lifecycle.Status, name string) bool {
		return slices.ContainsFunc(st, func(s lifecycle.Status) bool { return s.Name == name && s.State == lifecycle.Ready })
	}
	await.NoError(t, t.Context(), patience, "the stages", func() error {
		for _, name := range must {
			if st := m.status(); !ready(st.Stages, name) {
				return fmt.Errorf("%s is not ready: %v", name, st.Stages)
			}
		}
		return nil
	})
	t.Logf("%v are ready after %.0f s", must, time.Since(began).Seconds())
	var st api.Status
	ctx, cancel := context.WithDeadline(t.Context(), began.Add(10*time.Minute))
	defer cancel()
	_ = await.Until(ctx, func() error { // it need not become so here, where it is emulated
		if st = m.status(); !st.Ready {
			return errors.New("not ready")
		}
		return nil
	})
	for _, s := range st.Stages {
		t.Logf("%-14s %-10s %6.0f s  %s", s.Name, s.State, s.Took.Seconds(), s.Detail)
	}
	t.Logf("ready: %v, after %.0f s", st.Ready, time.Since(began).Seconds())
	if len(st.Stages) < 10 || st.Version == "" {
		t.Errorf("it says too little of itself: %+v", st)
	}
	m.crash()
}

// status is what the device says of itself.
func (m *machine) status() (st api.Status) {
	m.t.Helper()
	await.NoError(m.t, m.t.Context(), patience, "rivulet status", func() error {
		answer := m.ask("rivulet status -o json | tr -d '\\n'")
		begin := strings.IndexByte(answer, '{')
		if begin < 0 {
			return fmt.Errorf("%s", answer)
		}
		st = api.Status{}
		return json.Unmarshal([]byte(answer[begin:]), &st)
	})
	return st
}

func gunzip(t *testing.T, raw []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
