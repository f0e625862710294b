package doctor

import (
	"context"
	"strconv"

	"rivulet/appliance/health"
	"rivulet/appliance/machine/host"
)

var memory = Probe{Kind: health.Memory, Title: "memory", Every: often, Run: probeMemory}

// A board with nominally 1 GB shows about 900 MB, of which the cluster uses 450; one of 512 MB about 460, of which it uses
// 350 by the settings of docs/design/small.md.
const (
	memoryWant = 850 << 20
	memoryMin  = 400 << 20
	memoryFree = 60 << 20
)

func probeMemory(_ context.Context, e *Env) Result {
	info := host.Fields(e.read("/proc/meminfo"))
	total, free := info["MemTotal"]<<10, info["MemAvailable"]<<10
	switch {
	case total == 0:
		return Skipf("/proc/meminfo cannot be read")
	case total < memoryMin:
		return Failf("use a board with 1 GB or more", "%s in all; Kubernetes alone takes 350 MB", size(total))
	case free < memoryFree:
		return Warnf("look at what takes it: rivulet kubectl get pods -A; give pods memory limits", "%s of %s are left", size(free), size(total))
	case total < memoryWant:
		return Warnf("use a board with 1 GB or more", "%s in all: a few small pods fit beside Kubernetes", size(total))
	}
	return Passf("%s, %s available", size(total), size(free))
}

// size formats a number of bytes for users.
func size(n uint64) string {
	switch {
	case n >= 10<<30:
		return strconv.FormatUint(n>>30, 10) + " GiB"
	case n >= 10<<20:
		return strconv.FormatUint(n>>20, 10) + " MiB"
	}
	return strconv.FormatUint(n>>10, 10) + " KiB"
}
