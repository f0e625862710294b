package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Proc names one process for good: a PID comes back, a PID with its start time does not (within one boot).
type Proc struct {
	PID   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"` // clock ticks since boot, field 22 of /proc/PID/stat
}

// procOf reads who has that PID now. A zombie counts as gone.
func procOf(pid int) (Proc, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Proc{}, err
	}
	return parseStat(pid, string(b))
}

// parseStat takes the start time out of a /proc/PID/stat line. The name in brackets may itself hold blanks and brackets.
func parseStat(pid int, line string) (Proc, error) {
	i := strings.LastIndexByte(line, ')')
	f := strings.Fields(line[i+1:])
	if i < 0 || len(f) < 20 {
		return Proc{}, fmt.Errorf("lab: cannot read the stat line of process %d", pid)
	}
	if f[0] == "Z" || f[0] == "X" {
		return Proc{}, os.ErrProcessDone
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return Proc{}, fmt.Errorf("lab: start time of process %d: %w", pid, err)
	}
	return Proc{PID: pid, Start: start}, nil
}

// Alive tells whether this very process still runs.
func (p Proc) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	now, err := procOf(p.PID)
	return err == nil && now == p
}

// signal sends a signal, unless another process has the PID by now.
func (p Proc) signal(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return fmt.Errorf("lab: open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.Alive() {
		return os.ErrProcessDone
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		return fmt.Errorf("lab: signal process %d: %w", p.PID, err)
	}
	return nil
}

// kill sends SIGKILL and waits until the process, and if it is a namespace's init everything in there, is gone.
// It does nothing when the PID belongs to another process by now.
func (p Proc) kill(ctx context.Context) error {
	if p.PID <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lab: open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.Alive() { // checked after opening: from here on the pidfd cannot change its meaning
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("lab: kill process %d: %w", p.PID, err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("lab: wait for process %d: %w", p.PID, err)
		case ctx.Err() != nil:
			return fmt.Errorf("lab: process %d does not end: %w", p.PID, ctx.Err())
		}
	}
}

// poll calls f until it says yes, fails, or ctx ends.
func poll(ctx context.Context, every time.Duration, f func() (bool, error)) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if ok, err := f(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}
