package doctor

import (
	"os"
	"testing"
	"time"
)

func TestKernelCrash(t *testing.T) {
	const (
		ramoops = CrashFolder + "/dmesg-ramoops-0"
		efi     = CrashFolder + "/1761000000/001/dmesg.txt"
		panics  = "Panic#1 Part1\n<4>[   30.1] Oops: general protection fault\n<0>[   30.2] Kernel panic - not syncing: sysrq triggered crash\n<0>[   30.3] Kernel Offset: 0x2e00000\n"
		disk    = "Panic#1 Part1\n<2>[  900.1] rivulet: the disk of this device (/dev/mmcblk0) has not answered for ten minutes: starting again\n<0>[  900.2] Kernel panic - not syncing: sysrq triggered crash\n"
		oops    = "Oops#1 Part1\n<6>[  1.0] usb 1-1: new device\n<4>[   30.1] BUG: kernel NULL pointer dereference, address: 0000000000000008\n"
	)
	kept := files{"/sys/fs/pstore/.keep": ""}
	ago := func(tree files, at map[string]time.Duration) *testEnv {
		e := machine(t, with(kept, tree))
		for name := range tree {
			when := noon.Add(-at[name])
			if err := os.Chtimes(e.path(name), when, when); err != nil {
				t.Fatal(err)
			}
		}
		return e
	}
	found(t, machine(t, nil), kernelCrash, Skip)
	found(t, machine(t, kept), kernelCrash, Pass, "none")
	found(t, ago(files{ramoops: panics}, nil), kernelCrash, Warn, "2026-06-01 12:00 UTC: Kernel panic - not syncing: sysrq triggered crash", "rivulet support")
	found(t, ago(files{ramoops: disk}, nil), kernelCrash, Warn, ": the disk of this device (/dev/mmcblk0) has not answered for ten minutes")
	found(t, ago(files{efi: oops}, nil), kernelCrash, Warn, "BUG: kernel NULL pointer dereference")
	found(t, ago(files{ramoops: "\x78\x9c\x00"}, nil), kernelCrash, Warn, "did not say why")
	// The newest one is told; what is older than a week is not.
	found(t, ago(files{ramoops: panics, efi: oops}, map[string]time.Duration{ramoops: time.Hour}), kernelCrash, Warn, "BUG")
	found(t, ago(files{ramoops: panics}, map[string]time.Duration{ramoops: crashMind + time.Second}), kernelCrash, Pass, "none")
	// A clock that was ahead when it was kept.
	found(t, ago(files{ramoops: panics}, map[string]time.Duration{ramoops: -time.Hour}), kernelCrash, Warn, "sysrq")
}
