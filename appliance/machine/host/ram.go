package host

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// RAM is how much memory this process may count on, bytes: the machine's, or less
// where a cgroup above it says so (systemd's MemoryMax, a container) or where
// /proc/meminfo does, which the kubelet believes. 0 is not known.
func RAM() uint64 {
	var si unix.Sysinfo_t
	var total uint64
	if err := unix.Sysinfo(&si); err == nil {
		total = uint64(si.Totalram) * uint64(si.Unit)
	}
	return ram(total, "/")
}

// ram takes the least of what is known; root is where the file systems are.
func ram(total uint64, root string) uint64 {
	least := func(n uint64) {
		if n > 0 && (total == 0 || n < total) {
			total = n
		}
	}
	if raw, err := os.ReadFile(filepath.Join(root, "proc/meminfo")); err == nil {
		least(memTotal(raw))
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

// memTotal reads the line of /proc/meminfo.
func memTotal(meminfo []byte) uint64 {
	for s := bufio.NewScanner(bytes.NewReader(meminfo)); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) >= 2 && f[0] == "MemTotal:" {
			kB, _ := strconv.ParseUint(f[1], 10, 64)
			return kB << 10
		}
	}
	return 0
}

// limitFiles are those that may limit a process with this /proc/self/cgroup: its
// own cgroup's and those of all above it, in either version.
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
