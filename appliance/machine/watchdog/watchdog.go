// Package watchdog reports to the service manager that the supervisor serves and lives; the latter only while every
// check holds (docs/design/lifecycle.md). It reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and alone writes
// the file `probe` in the state folder. Restart: it begins anew. Failure of a check: a problem with its cure; after
// the check's Patience the service manager kills and starts the supervisor. Pods and the tunnel stay.
package watchdog

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Check is one thing that must hold.
type Check struct {
	Name string
	// Probe returns an error that ends in "; cure". It may hang: then it is an
	// error by itself after Limit, and is not called again until it has returned.
	Probe func(ctx context.Context) error
	// Every is how often Probe is called while it succeeds; 0 is each time the
	// watchdog looks. One that failed is called each time.
	Every time.Duration
	// Limit is how long Probe may take.
	Limit time.Duration
	// Patience is how long it may go on failing before the service manager is not
	// told any more that all is well.
	Patience time.Duration
	// Report is called with each result that differs from the last; it may be nil.
	Report func(error)
}

// Feeder looks at checks and tells whether all of them hold.
type Feeder struct {
	Log    *slog.Logger
	Checks []Check
	// Alive is called each time all checks hold.
	Alive func()

	now    func() time.Time // nil is time.Now
	states []*state
}

// state is what is known of one check.
type state struct {
	Check
	mu      sync.Mutex
	begun   time.Time // when the call under way began; zero if there is none
	last    time.Time // when the last call that returned had begun
	failing time.Time // since when it fails; zero if it does not
	err     error
}

// CheckEvery is how often the checks are looked at when nobody waits for an Alive.
const CheckEvery = 20 * time.Second

// Run looks at the checks until ctx ends: four times in each period that the
// service manager waits, or every Look if it is 0.
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

// check calls the probes that are due, gives them a moment, and judges.
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
			case <-time.After(moment): // judged the next time
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

// result takes over what a probe said. The lock is held.
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

// evaluate returns the error that keeps the service manager from being told that
// all is well, nil if there is none or it may still go away.
func (s *state) evaluate(now time.Time, log *slog.Logger) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun.IsZero() && now.Sub(s.begun) > s.Limit {
		// It has failed since it began, not since we noticed.
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
