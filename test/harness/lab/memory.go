package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// limitMemory gives a device's cgroup so many bytes: what its processes take and what the kernel caches for them is no
// more than that, as on a small board. The host must have the memory controller.
func limitMemory(hs []hierarchy, id, name string, limit int64) error {
	for _, h := range hs {
		file := "memory.limit_in_bytes"
		switch {
		case h.V2 && pure(hs):
			file = "memory.max"
		case h.V2 || !hasMemory(h.Opts):
			continue
		}
		path := filepath.Join(h.Mount, cgroupName(id), name, file)
		if err := os.WriteFile(path, []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
			return fmt.Errorf("lab: limit memory: %w", err)
		}
		return nil
	}
	return fmt.Errorf("lab: this host has no memory cgroup, so a device cannot be made small; boot it with cgroup_enable=memory")
}

func hasMemory(opts string) bool {
	for _, o := range strings.Split(opts, ",") {
		if o == "memory" {
			return true
		}
	}
	return false
}

// showMemory puts a /proc/meminfo of such a board over the device's: the kubelet believes that file.
func showMemory(root string, limit int64) error {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	path := filepath.Join(root, "run/lab-meminfo")
	if err := os.WriteFile(path, []byte(meminfo(string(raw), limit>>10)), 0o444); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if err := unix.Mount(path, filepath.Join(root, "proc/meminfo"), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("lab: memory: %w", err)
	}
	return nil
}

// meminfo is the host's with no figure above the device's memory.
func meminfo(host string, kB int64) string {
	var b strings.Builder
	for line := range strings.Lines(host) {
		name, value, _ := strings.Cut(line, ":")
		f := strings.Fields(value)
		n := int64(-1)
		if len(f) == 2 && f[1] == "kB" && name != "VmallocTotal" {
			n, _ = strconv.ParseInt(f[0], 10, 64)
		}
		if n > kB {
			line = fmt.Sprintf("%-16s%8d kB\n", name+":", kB)
		}
		b.WriteString(line)
	}
	return b.String()
}
