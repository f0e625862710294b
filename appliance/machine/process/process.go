// Package process ends and follows processes by pidfds, so that no other one that has got the same number is hit,
// and starts children that end with this process. It reads /proc and PID files, and writes nothing. Restart: what
// an earlier process left is found by its PID file (EndOld). Failure: an error that names the process.
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

// Handle is a process that somebody else may have started.
type Handle struct{ PID, fd int }

// Open returns a handle of a process; ESRCH is in the error where there is none.
func Open(pid int) (Handle, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return Handle{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return Handle{pid, fd}, nil
}

// Close gives the handle up.
func (h Handle) Close() { unix.Close(h.fd) }

// End has processes end: by themselves within grace (0: none is given), else by force. It returns those that are
// there after a further time, or when ctx ends.
func End(ctx context.Context, all []Handle, grace, force time.Duration) (stuck []Handle) {
	if grace > 0 {
		all = signalled(ctx, all, grace, unix.SIGTERM, unix.SIGCONT)
	}
	return signalled(ctx, all, force, unix.SIGKILL)
}

// signalled returns those that have not ended within a time after the signals.
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
			slice := max(0, min(time.Until(deadline), 100*time.Millisecond)) // to see ctx end
			if n, _ = unix.Poll(poll, int(slice/time.Millisecond)); n <= 0 && (slice == 0 || ctx.Err() != nil) {
				left = append(left, h)
				break
			}
		}
	}
	return left
}

// EndOld ends the process of a PID file as End does, if it still is that program, which k3s for one keeps in its
// title. found, which may be nil, is called before. A PID file that cannot be read is an error; that there is none is not.
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
		return nil // no program of ours has written that
	}
	h, err := Open(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	if cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || !bytes.Contains(cmdline, []byte(program)) {
		return nil // it has ended, or is another program
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
