package usage

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/process"
)

// meter sums counters of a changing set of processes.
type meter struct {
	begun bool
	last  map[int]uint64
	total uint64
}

// add takes the present counters and returns the sum since the first call. Writes between a process's last reading and
// its end are lost; a new process counts from its start, except at the first call.
func (m *meter) add(now map[int]uint64) uint64 {
	for pid, n := range now {
		was, known := m.last[pid]
		switch {
		case !m.begun:
		case known && n >= was:
			m.total += n - was
		default: // new, or another process with the same number
			m.total += n
		}
	}
	m.begun, m.last = true, now
	return m.total
}

// written returns the bytes that a process caused to be written to disk, without those truncated before.
func written(proc string, pid int) (uint64, error) {
	raw, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "io"))
	if err != nil {
		return 0, err
	}
	f := host.Fields(string(raw))
	return f["write_bytes"] - min(f["cancelled_write_bytes"], f["write_bytes"]), nil
}

// memoryOf returns the sums over the process's pages.
func memoryOf(proc string, pid int) (p Process, err error) {
	raw, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		return p, err
	}
	kB := host.Fields(string(raw))
	if kB["Pss"] == 0 {
		return p, fmt.Errorf("footprint: process %d has ended", pid)
	}
	return Process{PSS: kB["Pss"] << 10, Private: (kB["Private_Clean"] + kB["Private_Dirty"]) << 10}, nil
}

// tick is the kernel's unit of CPU time in /proc, on every architecture.
const tick = time.Second / 100

// cpuOf returns the CPU time of a process, of the kernel for it included; 0 if it has ended.
func cpuOf(proc string, pid int) time.Duration {
	raw, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	f := process.StatFields(string(raw))
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * tick
}

// child finds a child process by its argv[0]; 0 if there is none.
func child(proc string, parent int, name string) int {
	stats, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		f := process.StatFields(string(raw))
		if len(f) < 2 || f[1] != strconv.Itoa(parent) {
			continue
		}
		dir := filepath.Dir(path)
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		first, _, _ := strings.Cut(string(cmdline), "\x00")
		if f := strings.Fields(first); len(f) > 0 && filepath.Base(f[0]) == name {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			return pid
		}
	}
	return 0
}

// diskWritten returns the disk of a folder and the bytes written to it since boot; no name if the file system has no
// disk of its own.
func diskWritten(dir string) (name string, bytes uint64, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", 0, err
	}
	return diskOf("/sys/dev/block", unix.Major(st.Dev), unix.Minor(st.Dev))
}

const sector = 512 // unit of /sys/block/*/stat for all disks

func diskOf(sys string, major, minor uint32) (name string, bytes uint64, err error) {
	dev, err := filepath.EvalSymlinks(filepath.Join(sys, fmt.Sprintf("%d:%d", major, minor)))
	if err != nil {
		return "", 0, err
	}
	if _, err := os.Stat(filepath.Join(dev, "partition")); err == nil {
		dev = filepath.Dir(dev)
	}
	raw, err := os.ReadFile(filepath.Join(dev, "stat"))
	if err != nil {
		return "", 0, err
	}
	f := strings.Fields(string(raw))
	if len(f) < 7 {
		return "", 0, fmt.Errorf("footprint: %s/stat is unreadable", dev)
	}
	n, err := strconv.ParseUint(f[6], 10, 64)
	return filepath.Base(dev), n * sector, err
}
