package lifecycle

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"rivulet/fabric/changes"
)

// tick is the unit of times in /proc, the same on every Linux that Go runs on.
const tick = time.Second / 100

// Uptime returns how long this process and the kernel have been running, suspended time included.
func Uptime() (process, boot time.Duration) {
	boot = changes.BootTime()
	raw, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, boot
	}
	// The name in brackets may contain blanks and brackets; the 20th field after it is the start time of the process.
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(fields) < 20 {
		return 0, boot
	}
	began, err := strconv.ParseInt(string(fields[19]), 10, 64)
	if err != nil {
		return 0, boot
	}
	return max(boot-time.Duration(began)*tick, time.Millisecond), boot
}
