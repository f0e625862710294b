// Package watchdog reports to the service manager that the supervisor serves and is alive; the latter only while every
// check holds (docs/design/lifecycle.md). It reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and alone writes the
// file `probe` in the state folder. Restart: it begins again. Failure of a check: a problem with its cure; after the
// check's Patience the service manager kills and restarts the supervisor. Pods and the tunnel continue.
package watchdog

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Check is one condition.
type Check struct {
	Name string
	// Probe returns an error that ends in "; cure". If it hangs, that is an error after Limit, and it is not called
	// again until it has returned.
	Probe func(ctx context.Context) error
	// Every is the interval of Probe while it succeeds; 0 is every check. After a failure it is called at every check.
	Every time.Duration
	// Limit is how long Probe may take.
	Limit time.Duration
	// Patience is how long it may fail before Alive stops.
	Patience time.Duration
	// Report is called with each result that differs from the last; it may be nil.
	Report func(error)
}

// Feeder evaluates checks and reports whether all of them hold.
type Feeder struct {
	Log    *slog.Logger
	Checks []Check
	// Alive is called each time all checks hold.
	Alive func()

	now    func() time.Time // nil is time.Now
	states []*state
}

// state is the state of one check.
type state struct {
	Check
	mu      sync.Mutex
	begun   time.Time // start of the call in progress; zero if there is none
	last    time.Time // start of the last completed call
	failing time.Time // start of the failure; zero if there is none
	err     error
}

// CheckEvery is the interval of checks without a service manager that waits for Alive.
const CheckEvery = 20 * time.Second

// Run evaluates the checks until ctx ends: four times in each period of the service manager, or every CheckEvery if it
// is 0.
func (f *Feeder) Run(ctx context.Context, period time.Duration) {
	every := CheckEvery
	if period > 0 {
		every = min(period/4, CheckEvery)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		f.check(ctx, every)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// check calls the due probes, waits for a moment, and evaluates the results.
func (f *Feeder) check(ctx context.Context, moment time.Duration) {
	if f.states == nil {
		for _, c := range f.Checks {
			f.states = append(f.states, &state{Check: c})
		}
	}
	moment = min(moment/2, time.Second)
	well := true
	for _, s := range f.states {
		done := s.call(ctx, f.time)
		if done != nil {
			select {
			case <-done:
			case <-time.After(moment): // evaluated at the next check
			case <-ctx.Done():
				return
			}
		}
		if err := s.evaluate(f.time(), f.Log); err != nil {
			well = false
		}
	}
	if well {
		f.Alive()
	}
}

func (f *Feeder) time() time.Time {
	if f.now != nil {
		return f.now()
	}
	return time.Now()
}

// call starts the probe if it is due; the channel is closed when it returns.
func (s *state) call(ctx context.Context, now func() time.Time) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.last.IsZero() || s.err != nil || now().Sub(s.last) >= s.Every
	if !s.begun.IsZero() || !due {
		return nil
	}
	begun := now()
	s.begun = begun
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(ctx, s.Limit)
		defer cancel()
		err := s.Probe(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.begun, s.last = time.Time{}, begun
		s.result(err, now())
	}()
	return done
}

// result stores a probe's result. The caller holds the lock.
func (s *state) result(err error, now time.Time) {
	changed := (err == nil) != (s.err == nil) || err != nil && err.Error() != s.err.Error()
	s.err = err
	switch {
	case err == nil:
		s.failing = time.Time{}
	case s.failing.IsZero():
		s.failing = now
	}
	if changed && s.Report != nil {
		s.Report(err)
	}
}

// evaluate returns the error that stops Alive, nil if there is none or it is within the patience.
func (s *state) evaluate(now time.Time, log *slog.Logger) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun.IsZero() && now.Sub(s.begun) > s.Limit {
		// It has failed since the call began.
		if s.err == nil {
			s.failing = s.begun
		}
		s.result(fmt.Errorf("%s has not answered for more than %s; if it stays so, restart the device", s.Name, s.Limit), now)
	}
	if s.err == nil || now.Sub(s.failing) < s.Patience {
		return nil
	}
	log.Error("not telling the service manager that all is well; it will start rivulet again", "check", s.Name,
		"err", s.err, "failing_for", now.Sub(s.failing).Round(time.Second))
	return s.err
}
