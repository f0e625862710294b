package appliance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/watchdog"
)

// How long each check of the watchdog may fail before the service manager is not
// told any more that all is well.
const (
	// A main loop that is stuck gets no better.
	loopLimit = 10 * time.Second
	// A cheap card under load may need many seconds for a sync.
	diskLimit, diskPatience = 2 * time.Minute, 5 * time.Minute
	// The engine is started again by us, which takes a minute or two on a small
	// board; only if that does not help for long is it worth to begin anew ourselves.
	engineSilence = 10 * time.Minute
)

// answers remembers when the API server has last answered; zero before it did.
type answers struct{ last atomic.Int64 }

func (a *answers) now() { _, boot := lifecycle.Uptime(); a.last.Store(int64(boot)) }

// silence is how long it has not answered, 0 if it never has.
func (a *answers) silence() time.Duration {
	last := a.last.Load()
	if last == 0 {
		return 0
	}
	_, boot := lifecycle.Uptime()
	return boot - time.Duration(last)
}

// runWatchdog tells the service manager that we live, and shows what keeps us
// from saying so.
func (s *System) runWatchdog(ctx context.Context, stage *lifecycle.Stage) error {
	period, err := watchdog.Period()
	if err != nil {
		s.cfg.Log.Warn("the service manager's watchdog period is unreadable; it is not fed", "error", err)
	}
	f := watchdog.Feeder{
		Log: s.cfg.Log.With("component", cWatchdog), Alive: s.notify.Alive,
		Checks: []watchdog.Check{
			{Name: "the supervisor", Limit: loopLimit, Probe: s.askSelf},
			{Name: "the disk of " + s.cfg.Dirs.State, Limit: diskLimit, Patience: diskPatience, Every: watchdog.DiskEvery,
				Probe: watchdog.Disk(s.cfg.Dirs.State), Report: func(err error) { s.health.Report(health.StateNotWritable, err) }},
			{Name: "the engine", Limit: loopLimit, Probe: s.askEngine, Report: func(err error) { s.health.Report(health.EngineSilent, err) }},
		},
	}
	stage.Ready()
	f.Run(ctx, period)
	return nil
}

// askSelf asks as `rivulet status` would, and needs no subsystem but those that
// every answer needs.
func (s *System) askSelf(ctx context.Context) error {
	return api.Call(ctx, s.cfg.Dirs.Run, http.MethodGet, "/v1/alive", nil, nil)
}

// alive answers askSelf: the manager and the fields that all share can be had.
func (s *System) alive(*http.Request) (any, error) {
	s.manager.Status()
	s.kube()
	return struct{}{}, nil
}

func (s *System) askEngine(context.Context) error {
	if d := s.answers.silence(); d > engineSilence {
		return fmt.Errorf("the API server has not answered for %s although the engine was started again; look at %s/log/engine.log",
			d.Round(time.Second), s.cfg.Dirs.State)
	}
	return nil
}

// tell keeps the service manager's line about us up to date, until ctx ends.
// Ready is that the supervisor answers, not that the cluster does: a device that
// waits for a missing program, a port or a slow card must not be killed by a
// timeout of its start.
func (s *System) tell(ctx context.Context) {
	ready := false
	for ctx.Err() == nil {
		changed := s.manager.Changed()
		stages := s.manager.Status()
		if !ready && stateOf(stages, cAPI) == lifecycle.Ready {
			ready = true
			s.notify.Ready()
		}
		s.notify.Status(statusLine(stages))
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	if errors.Is(context.Cause(ctx), context.Canceled) {
		s.notify.Stopping()
	}
}

func stateOf(stages []lifecycle.Status, name string) lifecycle.State {
	for _, st := range stages {
		if st.Name == name {
			return st.State
		}
	}
	return ""
}

// statusLine is what `systemctl status` shows of us.
func statusLine(stages []lifecycle.Status) string {
	ready, waiting := readiness(stages)
	process, boot := readyAfter(stages)
	switch {
	case ready:
		return fmt.Sprintf("Ready (after %.1f s, %.1f s after boot)", process.Seconds(), boot.Seconds())
	case process > 0:
		return "Not ready any more: " + waiting
	}
	return "Starting: " + waiting
}

// readyAfter is how long it took until pods could be scheduled for the first
// time, 0 if they cannot yet.
func readyAfter(stages []lifecycle.Status) (process, boot time.Duration) {
	for _, name := range needed {
		for _, st := range stages {
			if st.Name != name {
				continue
			}
			if st.Took == 0 {
				return 0, 0
			}
			process, boot = max(process, st.Took), max(boot, st.SinceBoot)
		}
	}
	return process, boot
}
