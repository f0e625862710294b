package host

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// RAM is the memory available to this process, bytes: the machine's, or less by a limit of a cgroup above it (systemd's
// MemoryMax, a container) or by /proc/meminfo, which the kubelet uses. 0 is unknown.
func RAM() uint64 {
	var si unix.Sysinfo_t
	var total uint64
	if err := unix.Sysinfo(&si); err == nil {
		total = uint64(si.Totalram) * uint64(si.Unit)
	}
	return ram(total, "/")
}

// ram returns the least of the known values; root is where the file systems are.
func ram(total uint64, root string) uint64 {
	least := func(n uint64) {
		if n > 0 && (total == 0 || n < total) {
			total = n
		}
	}
	if raw, err := os.ReadFile(filepath.Join(root, "proc/meminfo")); err == nil {
		least(Fields(string(raw))["MemTotal"] << 10)
	}
	raw, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return total
	}
	for _, file := range limitFiles(string(raw)) {
		if raw, err := os.ReadFile(filepath.Join(root, file)); err == nil {
			n, _ := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64) // "max" is no number
			least(n)
		}
	}
	return total
}

// Fields reads lines such as "Name: 123 kB" of /proc; values that are not numbers are left out.
func Fields(text string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, ":")
		if f := strings.Fields(value); ok && len(f) > 0 {
			if n, err := strconv.ParseUint(f[0], 10, 64); err == nil {
				out[name] = n
			}
		}
	}
	return out
}

// limitFiles are those that may limit a process with this /proc/self/cgroup: of its own cgroup and of all above it, in
// either version.
func limitFiles(cgroups string) (files []string) {
	for line := range strings.Lines(cgroups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		base, name := "sys/fs/cgroup", "memory.max"
		switch {
		case f[1] == "memory":
			base, name = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case f[1] != "":
			continue
		}
		for dir := filepath.Clean("/" + f[2]); ; dir = filepath.Dir(dir) {
			files = append(files, filepath.Join(base, dir, name))
			if dir == "/" {
				break
			}
		}
	}
	return files
}
