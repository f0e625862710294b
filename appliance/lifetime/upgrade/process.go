package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"rivulet/fabric/changes"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// endGrace is how long a process may take to end before it is killed.
const endGrace = 20 * time.Second

// endProcess ends the process of a PID file, if it still is that program, and waits
// until it is gone.
func endProcess(ctx context.Context, pidFile, program string) error {
	raw, err := os.ReadFile(pidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // none was started
	}
	if err != nil {
		return fmt.Errorf("update: whether %s runs cannot be told: %w; restart the device", program, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 1 {
		return nil //nolint:nilerr // no program of ours has written that
	}
	is := func() bool {
		cmdline, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		return err == nil && bytes.Contains(cmdline, []byte(program))
	}
	deadline := time.Now().Add(endGrace)
	for told := false; is(); {
		switch {
		case !told:
			_ = unix.Kill(pid, unix.SIGTERM)
			told = true
		case time.Now().After(deadline.Add(endGrace)):
			return fmt.Errorf("update: process %d (%s) does not end; restart the device", pid, program)
		case time.Now().After(deadline):
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if !changes.Wait(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}
