// Package procs reads what processes cost: memory, CPU time and bytes written. It
// reads /proc and writes nothing there but the reset of a peak.
package procs

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Memory is a process's share of the machine's memory, bytes. Pages that several
// processes map are split between them (PSS); Private is what would be free if the
// process ended.
type Memory struct{ PSS, Anonymous, File, Private uint64 }

// Add sums up.
func (m Memory) Add(o Memory) Memory {
	return Memory{m.PSS + o.PSS, m.Anonymous + o.Anonymous, m.File + o.File, m.Private + o.Private}
}

// MemoryOf reads /proc/PID/smaps_rollup.
func MemoryOf(pid int) (Memory, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return Memory{}, err
	}
	kb := fields(string(raw))
	if _, ok := kb["Pss"]; !ok {
		return Memory{}, fmt.Errorf("procs: process %d has ended", pid)
	}
	return Memory{PSS: kb["Pss"] << 10, Anonymous: kb["Pss_Anon"] << 10, File: kb["Pss_File"] << 10,
		Private: (kb["Private_Clean"] + kb["Private_Dirty"]) << 10}, nil
}

// ResetPeak forgets the largest resident size so far.
func ResetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// Peak is the largest resident size since the start or ResetPeak, bytes.
func Peak(pid int) (uint64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return fields(string(raw))["VmHWM"] << 10, nil
}

// fields reads "Name:   123 kB" lines.
func fields(text string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, ":")
		f := strings.Fields(value)
		if !ok || len(f) != 2 || f[1] != "kB" {
			continue
		}
		if n, err := strconv.ParseUint(f[0], 10, 64); err == nil {
			out[name] = n
		}
	}
	return out
}

// Process is one entry of the process table.
type Process struct {
	PID, Parent int
	Args        []string
	Started     time.Duration // after boot
	CPU         time.Duration // user and system, of the process alone
}

// ticks of /proc/PID/stat are hundredths of a second on every Linux port Go has.
const tick = 10 * time.Millisecond

// Tree returns a process and all its descendants; those that end meanwhile are left out.
func Tree(root int) ([]Process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	all := map[int]Process{}
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		p, err := parseStat(string(stat))
		if err != nil {
			continue
		}
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		p.PID, p.Args = pid, strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
		all[pid] = p
	}
	if _, ok := all[root]; !ok {
		return nil, fmt.Errorf("procs: process %d has ended", root)
	}
	var out []Process
	for _, p := range all {
		for at, hops := p, 0; hops < 64; hops++ {
			if at.PID == root {
				out = append(out, p)
				break
			}
			parent, ok := all[at.Parent]
			if !ok {
				break
			}
			at = parent
		}
	}
	return out, nil
}

// parseStat reads a /proc/PID/stat line. The name in brackets may hold blanks and brackets.
func parseStat(line string) (Process, error) {
	f := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(f) < 20 {
		return Process{}, fmt.Errorf("procs: unreadable stat line %q", line)
	}
	var n [20]uint64
	for _, i := range []int{1, 11, 12, 19} {
		v, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			return Process{}, fmt.Errorf("procs: unreadable stat line %q: %w", line, err)
		}
		n[i] = v
	}
	return Process{Parent: int(n[1]), CPU: time.Duration(n[11]+n[12]) * tick, Started: time.Duration(n[19]) * tick}, nil
}

// StartTime is when the process was started, to a hundredth of a second.
func (p Process) StartTime() time.Time {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Now().Add(p.Started - time.Duration(ts.Nano()))
}

// Written is how many bytes the process caused to be written to disk, less what
// was truncated before it got there.
func Written(pid int) (uint64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	var written, cancelled uint64
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch name {
		case "write_bytes":
			written, err = strconv.ParseUint(value, 10, 64)
		case "cancelled_write_bytes":
			cancelled, err = strconv.ParseUint(value, 10, 64)
		}
		if err != nil {
			return 0, fmt.Errorf("procs: %w", err)
		}
	}
	return written - min(cancelled, written), nil
}
