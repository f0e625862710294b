package changes

import (
	"bytes"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// BootTime is the time since the machine booted, suspended time included: CLOCK_BOOTTIME, which all processes share.
func BootTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err) // Linux has this clock since 2.6.39; Go needs a later one
	}
	return time.Duration(now.Nano())
}

// BootID identifies this run of the kernel; empty if /proc does not have it.
func BootID() string {
	raw, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(raw))
}
