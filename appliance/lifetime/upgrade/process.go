package upgrade

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rivulet/appliance/machine/process"
)

// endGrace is how long a process may take to end before SIGKILL, and after it.
const endGrace = 20 * time.Second

// endProcess ends the process of a PID file, if it still runs that program, and waits for its end.
func endProcess(ctx context.Context, pidFile, program string) error {
	err := process.EndOld(ctx, pidFile, program, endGrace, endGrace, nil)
	if err == nil || errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("update: whether %s runs cannot be told, or it does not end: %w; restart the device", program, err)
}
