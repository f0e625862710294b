// Package doctor looks for what keeps a device from working well: one small probe per question, each with one line of
// cure, some with a fix (docs/design/doctor.md). It reads /proc, /sys, the network's state, Rivulet's folders and the
// status of a supervisor that runs; it writes nothing that stays unless Fix is called, and keeps nothing. Failure: a
// probe that hangs or panics is reported and holds up no other; what only root can see is skipped.
package doctor

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"rivulet/appliance/health"
)

// Status is how a probe ended.
type Status string

// The ways to end, from good to bad.
const (
	Pass Status = "pass"
	Skip Status = "skip" // cannot be asked here, or nothing to ask about
	Warn Status = "warn" // works, less well than it could
	Fail Status = "fail" // something that was asked for does not work
)

// Result is what a probe found.
type Result struct {
	Status Status `json:"status"`
	// Text is what was seen, one line. Cure is what to do about it, for Warn and Fail.
	Text string `json:"text"`
	Cure string `json:"cure,omitempty"`
	// Fix is what `doctor --fix` would do; nil where that is not safe to do by itself.
	Fix *Fix `json:"-"`
}

// Fix mends what a probe found.
type Fix struct {
	// Says is what Do would do, to be read before it is done: "adds … to …".
	Says string
	// Do may be called more than once.
	Do func(context.Context) error
	// Reboot is true where Do takes effect at the next boot only.
	Reboot bool
}

// Probe is one question. Its name is the code of the health problem that it finds.
type Probe struct {
	Kind *health.Kind
	// Title is what is looked at, in a few words.
	Title string
	// Every is how often the supervisor asks as well, from its start; 0 is never. Such
	// a probe is cheap, writes nothing and sends nothing to the LAN.
	Every time.Duration
	// Heals: the supervisor does the Fix by itself.
	Heals bool
	Run   func(context.Context, *Env) Result
}

// Name is what the user calls the probe.
func (p Probe) Name() string { return p.Kind.Code }

// Probes returns all of them, in the order of the report.
func Probes() []Probe { return slices.Clone(probes) }

// Find returns the probes of these names, in the order of the report.
func Find(names []string) ([]Probe, error) {
	for _, n := range names {
		if !slices.ContainsFunc(probes, func(p Probe) bool { return p.Name() == n }) {
			return nil, fmt.Errorf("there is no probe %q; see: rivulet doctor --list", n)
		}
	}
	return slices.DeleteFunc(Probes(), func(p Probe) bool { return !slices.Contains(names, p.Name()) }), nil
}

// timeLimit is for one probe, all of which run at once: a doctor that hangs on a
// broken device is of no use.
const timeLimit = 10 * time.Second

// Run asks the probes, all at once, and returns what they found in their order.
func Run(ctx context.Context, e *Env, asked []Probe) Report {
	rep := Report{At: e.Now(), Findings: make([]Finding, len(asked))}
	var wg sync.WaitGroup
	for i, p := range asked {
		wg.Go(func() {
			begun := time.Now()
			r := run(ctx, e, p)
			rep.Findings[i] = Finding{Name: p.Name(), Title: p.Title, Result: r, Took: time.Since(begun), kind: p.Kind}
			if r.Fix != nil {
				rep.Findings[i].Fix = r.Fix.Says
			}
		})
	}
	wg.Wait()
	return rep
}

// run bounds one probe. One that does not look at ctx (a dead disk, say) is left behind.
func run(ctx context.Context, e *Env, p Probe) Result {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	done := make(chan Result, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				done <- Warnf("report this as a bug of rivulet", "the probe itself failed: %v: %.300s", v, debug.Stack())
			}
		}()
		done <- p.Run(ctx, e)
	}()
	// A probe that heeds ctx still has something to say.
	late := time.NewTimer(timeLimit + time.Second)
	defer late.Stop()
	select {
	case r := <-done:
		return r
	case <-late.C:
		return Warnf("look for a disk or a device that does not answer: dmesg | tail", "no answer within %s", timeLimit)
	}
}

// Passf, Skipf, Warnf and Failf are the Results, with a text and, for the last two, a cure.
func Passf(format string, args ...any) Result {
	return Result{Status: Pass, Text: fmt.Sprintf(format, args...)}
}

func Skipf(format string, args ...any) Result {
	return Result{Status: Skip, Text: fmt.Sprintf(format, args...)}
}

func Warnf(cure, format string, args ...any) Result {
	return Result{Status: Warn, Text: fmt.Sprintf(format, args...), Cure: cure}
}

func Failf(cure, format string, args ...any) Result {
	return Result{Status: Fail, Text: fmt.Sprintf(format, args...), Cure: cure}
}
