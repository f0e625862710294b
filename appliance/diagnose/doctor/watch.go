package doctor

import (
	"context"
	"slices"
	"time"

	"rivulet/appliance/health"
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

// Watch asks the probes that name an interval, tells the tracker, and goes on until
// ctx ends. A probe that has found something is asked again sooner, so that what
// was mended goes from the screens; now asks all of them at once. env makes a new Env,
// as an Env remembers what it saw. first is called after the first round.
func Watch(ctx context.Context, env func() *Env, t *health.Tracker, now <-chan struct{}, first func()) {
	watched := slices.DeleteFunc(Probes(), func(p Probe) bool { return p.Every == 0 })
	due := make(map[string]time.Time, len(watched))
	for {
		begun := time.Now()
		asked := slices.DeleteFunc(slices.Clone(watched), func(p Probe) bool { return begun.Before(due[p.Name()]) })
		rep := Run(ctx, env(), asked)
		if ctx.Err() != nil {
			return // what a probe says that was called off is worth nothing
		}
		rep.Tell(t)
		for i, p := range asked {
			wait := p.Every
			if s := rep.Findings[i].Status; s == Warn || s == Fail {
				wait = min(wait, atOnce)
			}
			due[p.Name()] = time.Now().Add(wait)
		}
		if first != nil {
			first()
			first = nil
		}
		next := time.Now().Add(rarely)
		for _, at := range due {
			if at.Before(next) {
				next = at
			}
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
		case <-now:
			clear(due)
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}
