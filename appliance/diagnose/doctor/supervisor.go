package doctor

import (
	"context"
	"errors"
	"io/fs"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
)

var supervisor = Probe{Kind: health.Supervisor, Title: "rivulet itself", Run: probeSupervisor}

// probeSupervisor finds a supervisor that has ended on a device where it ran before. On other machines the doctor
// checks whether the machine is suitable.
func probeSupervisor(ctx context.Context, e *Env) Result {
	_, err := e.Supervisor(ctx)
	switch {
	case err == nil:
		return Passf("it runs and answers")
	case errors.Is(err, fs.ErrPermission):
		return Skipf("root can ask it, and members of a group: sudo rivulet doctor --only supervisor")
	case !errors.Is(err, api.ErrNotRunning):
		return Failf("see: sudo journalctl -n 50 -u rivulet", "it does not answer: %v", err)
	case !e.exists(e.State + "/state.db"):
		return Skipf("it has not run here yet")
	}
	return Failf(api.Start(), "the supervisor does not run: pods go on, and nothing looks after them, their volumes or the peers")
}
