package watchdog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
)

// How long each check may fail before the watchdog notifications stop.
const (
	// A blocked main loop does not recover.
	loopLimit = 10 * time.Second
	// A cheap card under load may need many seconds for a sync.
	diskLimit, diskPatience = 2 * time.Minute, 5 * time.Minute
	// The supervisor restarts the engine, which takes 1 to 2 min on a small board; only if that does not help for long,
	// a restart of the supervisor is useful.
	engineSilence = 10 * time.Minute
)

// Answers has the time of the API server's last answer; the zero value is never.
type Answers struct{ last atomic.Int64 }

// Now is called at each answer.
func (a *Answers) Now() { _, boot := lifecycle.Uptime(); a.last.Store(int64(boot)) }

// silence is the time since the last answer, 0 if there was none.
func (a *Answers) silence() time.Duration {
	last := a.last.Load()
	if last == 0 {
		return 0
	}
	_, boot := lifecycle.Uptime()
	return boot - time.Duration(last)
}

// Guard feeds the service manager's watchdog as long as the device works. All fields must be set.
type Guard struct {
	State    string                      // the state folder, which must be writable
	Self     func(context.Context) error // sends the supervisor a request as a user would
	Answers  *Answers
	Notifier *Notifier
	Health   *health.Tracker // shows why the watchdog is not fed
	Log      *slog.Logger
}

// Run feeds until ctx ends.
func (g Guard) Run(ctx context.Context, stage *lifecycle.Stage) error {
	period, err := Period()
	if err != nil {
		g.Log.Warn("the service manager's watchdog period is unreadable; it is not fed", "err", err)
	}
	f := Feeder{
		Log: g.Log, Alive: g.Notifier.Alive,
		Checks: []Check{
			{Name: "the supervisor", Limit: loopLimit, Probe: g.Self},
			{Name: "the disk of " + g.State, Limit: diskLimit, Patience: diskPatience, Every: DiskEvery,
				Probe: Disk(g.State), Report: func(err error) { g.Health.Report(health.StateNotWritable, err) }},
			{Name: "the engine", Limit: loopLimit, Probe: g.probeEngine, Report: func(err error) { g.Health.Report(health.EngineSilent, err) }},
		},
	}
	stage.Ready()
	f.Run(ctx, period)
	return nil
}

func (g Guard) probeEngine(context.Context) error {
	if d := g.Answers.silence(); d > engineSilence {
		return fmt.Errorf("the API server has not answered for %s although the engine was started again; look at %s/log/engine.log",
			d.Round(time.Second), g.State)
	}
	return nil
}

// Notify updates the service manager's line about the stages until ctx ends. up is the component with which the service
// counts as started: then the supervisor answers, the cluster need not. A start timeout must not kill a device that
// waits for a missing program, a port or a slow card. ready is called once, when all of needed is ready for the first
// time.
func (n *Notifier) Notify(ctx context.Context, m *lifecycle.Manager, up string, needed lifecycle.Essential, ready func(took time.Duration)) {
	started, said := false, false
	for ctx.Err() == nil {
		changed := m.Changed()
		stages := m.Status()
		if !started && stateOf(stages, up) == lifecycle.Ready {
			started = true
			n.Ready()
		}
		if is, _ := needed.Ready(stages); is && !said {
			said = true
			took, _ := needed.Took(stages)
			ready(took)
		}
		n.Status(statusLine(needed, stages))
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	if errors.Is(context.Cause(ctx), context.Canceled) {
		n.Stopping()
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

// statusLine is the line for `systemctl status`.
func statusLine(needed lifecycle.Essential, stages []lifecycle.Status) string {
	ready, waiting := needed.Ready(stages)
	process, boot := needed.Took(stages)
	switch {
	case ready:
		return fmt.Sprintf("Ready (after %.1f s, %.1f s after boot)", process.Seconds(), boot.Seconds())
	case process > 0:
		return "Not ready any more: " + waiting
	}
	return "Starting: " + waiting
}
