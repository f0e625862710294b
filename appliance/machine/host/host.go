// Package host detects the capabilities of the machine, so that the user need not configure them. It reads /proc and
// /sys. It writes only addresses, routes and kernel settings (Network, RaiseLimits).
package host

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Facts are the inputs of the engine's start.
type Facts struct {
	// CgroupV1 is true if the kubelet would find the legacy hierarchy.
	CgroupV1 bool `json:"cgroupV1"`
	// SysResource is CAP_SYS_RESOURCE: without it no oom_score_adj may be lowered.
	SysResource bool `json:"sysResource"`
	// MissingTools are programs of the engine that were missing at the start.
	MissingTools []string `json:"missingTools,omitempty"`
	// MemoryBytes is what RAM returns.
	MemoryBytes uint64 `json:"memoryBytes"`
}

const cgroup2Magic = 0x63677270

// Probe reads the Facts of this machine.
func Probe() (Facts, error) {
	var f Facts
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &fs); err != nil {
		return f, fmt.Errorf("host: no cgroups at /sys/fs/cgroup: %w; mount them (systemd does so at boot) and start again", err)
	}
	f.CgroupV1 = fs.Type != cgroup2Magic
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return f, fmt.Errorf("host: %w", err)
	}
	f.SysResource = hasCapability(status, unix.CAP_SYS_RESOURCE)
	f.MemoryBytes = RAM()
	f.MissingTools = MissingTools()
	return f, nil
}

// hasCapability reads the effective set of /proc/self/status.
func hasCapability(status []byte, capability int) bool {
	for s := bufio.NewScanner(bytes.NewReader(status)); s.Scan(); {
		hex, ok := strings.CutPrefix(s.Text(), "CapEff:")
		if !ok {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		return err == nil && set&(1<<capability) != 0
	}
	return false
}

// NameMax is the longest name that Name returns.
const NameMax = 40

var notDNS = regexp.MustCompile(`[^a-z0-9]+`)

// Name converts a host name to a valid node name of Kubernetes, or returns "" if nothing of it is left.
func Name(hostname string) string {
	short, _, _ := strings.Cut(strings.ToLower(hostname), ".")
	short = strings.Trim(notDNS.ReplaceAllString(short, "-"), "-")
	if len(short) > NameMax {
		short = strings.Trim(short[:NameMax], "-")
	}
	if short == "localhost" {
		return ""
	}
	return short
}
