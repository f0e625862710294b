package doctor

import (
	"context"
	"net/http"
	"slices"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
)

// How often a running device is looked at: what changes with the weather, what
// changes when somebody works on the machine, what changes with a cable, and what
// somebody waits for.
const (
	atOnce = 10 * time.Second
	soon   = 30 * time.Second
	often  = 5 * time.Minute
	rarely = time.Hour
)

// Watcher looks at a running device from time to time, and at once when somebody asks.
type Watcher struct {
	health *health.Tracker
	env    func() *Env
	again  chan struct{}
}

// NewWatcher returns one that looks at the device with these folders, and tells t.
func NewWatcher(t *health.Tracker, state, run string, status func() api.Status) *Watcher {
	return newWatcher(t, func() *Env {
		return Here(state, run, func(context.Context) (api.Status, error) { return status(), nil })
	})
}

// newWatcher takes what makes a new Env for each look, as an Env remembers what it saw.
func newWatcher(t *health.Tracker, env func() *Env) *Watcher {
	return &Watcher{health: t, env: env, again: make(chan struct{}, 1)}
}

// Again has all probes that name an interval asked now; it does not wait for them.
func (w *Watcher) Again() {
	select {
	case w.again <- struct{}{}:
	default:
	}
}

// Routes are `rivulet doctor` after it has repaired something.
func (w *Watcher) Routes(mux *http.ServeMux) {
	mux.Handle("POST /v1/doctor", api.JSON(func(*http.Request) (any, error) { w.Again(); return struct{}{}, nil }))
}

// Run asks the probes that name an interval until ctx ends. A probe that has found
// something is asked again sooner, so that what was mended goes from the screens. It is
// Ready after the first round.
func (w *Watcher) Run(ctx context.Context, stage *lifecycle.Stage) error {
	w.watch(ctx, stage.Ready)
	return nil
}

func (w *Watcher) watch(ctx context.Context, ready func()) {
	watched := slices.DeleteFunc(Probes(), func(p Probe) bool { return p.Every == 0 })
	due := make(map[string]time.Time, len(watched))
	for {
		begun := time.Now()
		asked := slices.DeleteFunc(slices.Clone(watched), func(p Probe) bool { return begun.Before(due[p.Name()]) })
		rep := Run(ctx, w.env(), asked)
		if ctx.Err() != nil {
			return // what a probe says that was called off is worth nothing
		}
		rep.Tell(w.health)
		for i, p := range asked {
			wait := p.Every
			if s := rep.Findings[i].Status; s == Warn || s == Fail {
				wait = min(wait, atOnce)
			}
			due[p.Name()] = time.Now().Add(wait)
		}
		ready()
		next := time.Now().Add(rarely)
		for _, at := range due {
			if at.Before(next) {
				next = at
			}
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
		case <-w.again:
			clear(due)
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}
