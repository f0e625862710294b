// Package doctor finds what prevents a device from working well: one small probe per question, each with one line of
// cure, some with a fix (docs/design/doctor.md). It reads /proc, /sys, the network's state, Rivulet's folders and the
// status of a running supervisor; it writes nothing permanent unless Fix is called, and stores nothing. Failure: a
// probe that hangs or panics is reported and delays no other; checks that need root are skipped for other users.
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

// Status is the result of a probe.
type Status string

// The results, from good to bad.
const (
	Pass Status = "pass"
	Skip Status = "skip" // cannot be checked here, or nothing to check
	Warn Status = "warn" // works, but not as well as it could
	Fail Status = "fail" // a requested function does not work
)

// Result is what a probe found.
type Result struct {
	Status Status `json:"status"`
	// Text is the observation, one line. Cure is for Warn and Fail.
	Text string `json:"text"`
	Cure string `json:"cure,omitempty"`
	// Fix is the action of `doctor --fix`; nil if it is not safe to do automatically.
	Fix *Fix `json:"-"`
}

// Fix repairs what a probe found.
type Fix struct {
	// Says describes the action of Do for users: "adds … to …".
	Says string
	// Do may be called more than once.
	Do func(context.Context) error
	// Reboot is true if Do takes effect at the next boot only.
	Reboot bool
}

// Probe is one check. Its name is the code of its health problem.
type Probe struct {
	Kind *health.Kind
	// Title describes the check in a few words.
	Title string
	// Every is the interval of checks by the supervisor, from its start; 0 is never. Such a probe is cheap, writes
	// nothing and sends nothing to the LAN.
	Every time.Duration
	// Heals: the supervisor does the Fix by itself.
	Heals bool
	Run   func(context.Context, *Env) Result
}

// Name is the probe's name for users.
func (p Probe) Name() string { return p.Kind.Code }

// Probes returns all of them, in the order of the report.
func Probes() []Probe { return slices.Clone(probes) }

// Find returns the probes of these codes, in the order of the report. Problems with other codes are seen by the
// supervisor: Report.Add has them.
func Find(names []string) ([]Probe, error) {
	for _, n := range names {
		if !slices.ContainsFunc(health.Kinds(), func(k health.Kind) bool { return k.Code == n }) {
			return nil, fmt.Errorf("there is no probe and no problem %q; see: rivulet doctor --list", n)
		}
	}
	return slices.DeleteFunc(Probes(), func(p Probe) bool { return !slices.Contains(names, p.Name()) }), nil
}

// timeLimit is for one probe; all run concurrently, so that a broken device does not block the doctor.
const timeLimit = 10 * time.Second

// Run runs the probes concurrently, and returns their results in their order.
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

// run bounds one probe. A probe that ignores ctx (for example with a dead disk) is abandoned.
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
	// A probe that respects ctx may still return a result.
	late := time.NewTimer(timeLimit + time.Second)
	defer late.Stop()
	select {
	case r := <-done:
		return r
	case <-late.C:
		return Warnf("look for a disk or a device that does not answer: dmesg | tail", "no answer within %s", timeLimit)
	}
}

// Passf, Skipf, Warnf and Failf return Results, with a text and, for the last two, a cure.
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
