// Package process ends and follows processes by pidfds, so that a reused number hits no other process, and starts
// children that end with this process. It reads /proc and PID files, and writes nothing. Restart: processes of an
// earlier supervisor are found by their PID file (EndOld). Failure: an error that names the process.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Handle is a process, started by any other one.
type Handle struct{ PID, fd int }

// Open returns a handle of a process; the error contains ESRCH if there is none.
func Open(pid int) (Handle, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return Handle{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return Handle{pid, fd}, nil
}

// Close releases the handle.
func (h Handle) Close() { unix.Close(h.fd) }

// End ends processes: by SIGTERM within grace (0: skipped), then by SIGKILL. It returns those that remain after the
// time force, or when ctx ends.
func End(ctx context.Context, all []Handle, grace, force time.Duration) (stuck []Handle) {
	if grace > 0 {
		all = signalled(ctx, all, grace, unix.SIGTERM, unix.SIGCONT)
	}
	return signalled(ctx, all, force, unix.SIGKILL)
}

// signalled returns those that have not ended within the limit after the signals.
func signalled(ctx context.Context, all []Handle, limit time.Duration, signals ...unix.Signal) (left []Handle) {
	for _, h := range all {
		for _, sig := range signals {
			_ = unix.PidfdSendSignal(h.fd, sig, nil, 0) // it may have ended
		}
	}
	deadline := time.Now().Add(limit)
	for _, h := range all {
		poll := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
		for n := 0; n <= 0; {
			slice := max(0, min(time.Until(deadline), 100*time.Millisecond)) // bounded, to notice the end of ctx
			if n, _ = unix.Poll(poll, int(slice/time.Millisecond)); n <= 0 && (slice == 0 || ctx.Err() != nil) {
				left = append(left, h)
				break
			}
		}
	}
	return left
}

// starting is the longest that a program that has just been started may have no arguments yet, as kernel threads never do.
const starting = time.Second

// runs reports whether the process runs a program: false of one that has ended.
func (h Handle) runs(program string) bool {
	for until := time.Now().Add(starting); ; {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", h.PID))
		if err != nil || len(cmdline) > 0 || time.Now().After(until) {
			return err == nil && bytes.Contains(cmdline, []byte(program))
		}
		poll := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
		if n, _ := unix.Poll(poll, 10); n > 0 {
			return false
		}
	}
}

// EndOld ends the process of a PID file as End does, if it still runs that program; k3s keeps the name in its title.
// found, which may be nil, is called before. An unreadable PID file is an error, a missing one is not.
func EndOld(ctx context.Context, pidFile, program string, grace, force time.Duration, found func(pid int)) error {
	raw, err := os.ReadFile(pidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 1 {
		return nil // not written by Rivulet
	}
	h, err := Open(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	if !h.runs(program) {
		return nil
	}
	if found != nil {
		found(pid)
	}
	if len(End(ctx, []Handle{h}, grace, force)) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("process %d (%s) does not end", pid, program)
}
