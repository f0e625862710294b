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

// Answers remembers when the API server has last answered; its zero value
// is that it never did.
type Answers struct{ last atomic.Int64 }

// Now is called when it answers.
func (a *Answers) Now() { _, boot := lifecycle.Uptime(); a.last.Store(int64(boot)) }

// silence is how long it has not answered, 0 if it never has.
func (a *Answers) silence() time.Duration {
	last := a.last.Load()
	if last == 0 {
		return 0
	}
	_, boot := lifecycle.Uptime()
	return boot - time.Duration(last)
}

// Guard feeds the service manager's watchdog as long as the device works. All fields
// must be set.
type Guard struct {
	State    string                      // the state folder, which must be writable
	Self     func(context.Context) error // asks the supervisor as a user would
	Answers  *Answers
	Notifier *Notifier
	Health   *health.Tracker // shows what keeps it from feeding
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

// Notify keeps the service manager's line about the stages up to date, until ctx ends.
// up is the component with which the service has started: the supervisor answers then,
// the cluster need not. A device that waits for a missing program, a port or a slow card
// must not be killed by a timeout of its start. ready is called once, when all that is
// needed is ready for the first time.
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

// statusLine is what `systemctl status` shows of us.
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
