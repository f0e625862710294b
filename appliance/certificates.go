package appliance

import (
	"context"
	"errors"
	"os"
	"time"

	"rivulet/appliance/clock"
	"rivulet/appliance/datastore"
	"rivulet/appliance/engine/dates"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
)

const (
	// datesLook is how often certificates are looked at: a device that runs for a
	// year needs new ones, too.
	datesLook = time.Hour
	// datesAgain is how long a start of the engine that did not help is not repeated,
	// datesCheck when it is looked whether it did.
	datesAgain = 24 * time.Hour
	datesCheck = 5 * time.Minute
)

// jumps collects what the clock reports until it is acted on.
type jumps struct {
	poke chan struct{}
	back chan struct{} // holds an entry once the clock went back
}

func newJumps() jumps { return jumps{make(chan struct{}, 1), make(chan struct{}, 1)} }

func (j jumps) add(by time.Duration) {
	if by < 0 {
		put(j.back)
	}
	put(j.poke)
}

func put(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// clockJumped is told by the clock when somebody has set it by minutes or more.
func (s *System) clockJumped(j clock.Jump) { s.jumps.add(j.By) }

// prepareDates is called before the engine is started: whatever was minted at
// another time is made valid at this one.
func (s *System) prepareDates(ctx context.Context, dataDir string) error {
	path := datastore.Path(s.cfg.Dirs.State)
	_, err := os.Stat(path)
	report, err := dates.Prepare(dataDir, errors.Is(err, os.ErrNotExist), offline{ctx, path}, time.Now())
	if !report.Empty() {
		s.cfg.Log.Info("made valid for this time", "component", cEngine, "authorities_made", report.Made,
			"authorities_renewed", report.Renewed, "certificates_removed", report.Removed, "leases_of_the_future", report.Leases)
	}
	return err
}

// offline is the datastore while no engine runs.
type offline struct {
	ctx  context.Context
	path string
}

func (o offline) Delete(prefix string, match func(string, []byte) bool) (int, error) {
	return datastore.Delete(o.ctx, o.path, prefix, match)
}

// runCertificates starts the engine again when certificates end soon, or when a
// jump of the clock has made invalid what it has: certificates, and, when it went
// back, also tokens and leases, which are then from the future.
func (s *System) runCertificates(ctx context.Context, stage *lifecycle.Stage) error {
	stage.Ready()
	timer := time.NewTimer(datesLook)
	defer timer.Stop()
	var helped time.Time // when the engine was last started again for its certificates
	for {
		timer.Reset(datesLook)
		if s.lookAtDates(&helped) {
			timer.Reset(datesCheck)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-s.jumps.poke:
		}
	}
}

// lookAtDates reports whether it has started the engine again.
func (s *System) lookAtDates(helped *time.Time) bool {
	if !s.clock.Status().Plausible {
		return false // nothing is minted now; the next jump or hour brings us back
	}
	s.mu.Lock()
	e := s.engine
	s.mu.Unlock()
	select {
	case <-s.jumps.back:
		s.health.Clear(health.CertificatesInvalid)
		e.Restart("the clock was set back: certificates, tokens and leases may be of the future")
		return true
	default:
	}
	why := dates.Due(e.DataDir(), time.Now())
	switch {
	case why == "":
		s.health.Clear(health.CertificatesInvalid)
	case helped.IsZero() || time.Since(*helped) > datesAgain:
		*helped = time.Now()
		e.Restart(why)
		return true
	default:
		s.health.Set(health.CertificatesInvalid, why+", and a start of the engine has made no new one", "look at "+e.LogFile())
	}
	return false
}
