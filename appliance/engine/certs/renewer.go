package certs

import (
	"context"
	"log/slog"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/changes"
)

const (
	// datesLook is the interval of certificate checks, for devices that run for a year.
	datesLook = time.Hour
	// datesAgain is the pause after an engine restart that did not help, datesCheck the time after which that is
	// checked.
	datesAgain = 24 * time.Hour
	datesCheck = 5 * time.Minute
)

// Engine is the running engine.
type Engine interface {
	DataDir() string
	LogFile() string
	Restart(why string) // stops it in order and starts it again; does not wait
}

// Database is the datastore of an engine that does not run.
type Database interface {
	New(context.Context) (bool, error) // it has never had a cluster
	// Delete is datastore.Delete.
	Delete(ctx context.Context, prefix string, match func(key string, value []byte) bool) (int, error)
}

// Renewer keeps the certificates of an engine valid, before it starts and while it runs.
type Renewer struct {
	engine   Engine
	database Database
	may      func() bool
	health   *health.Tracker
	log      *slog.Logger

	// Changes of the clock that wait to be handled.
	poke chan struct{}
	back chan struct{} // holds an entry after the clock went back
}

// NewRenewer returns the Renewer of an engine with its database; may reports whether a start of the engine could get
// certificates for a year from now.
func NewRenewer(e Engine, database Database, may func() bool, t *health.Tracker, log *slog.Logger) *Renewer {
	return &Renewer{engine: e, database: database, may: may, health: t, log: log,
		poke: make(chan struct{}, 1), back: make(chan struct{}, 1)}
}

// Jumped is called when the clock was set by minutes or more.
func (k *Renewer) Jumped(by time.Duration) {
	if by < 0 {
		put(k.back)
	}
	put(k.poke)
}

func put(ch chan struct{}) {
	changes.Poke(ch)
}

// Prepare is called before the engine starts: it makes certificates of another time valid now.
func (k *Renewer) Prepare(ctx context.Context) error {
	first, err := k.database.New(ctx)
	if err != nil {
		return err
	}
	report, err := Prepare(k.engine.DataDir(), first, offline{ctx, k.database}, time.Now())
	if !report.Empty() {
		k.log.Info("made valid for this time", "authorities_made", report.Made,
			"authorities_renewed", report.Renewed, "certificates_removed", report.Removed, "leases_of_the_future", report.Leases)
	}
	return err
}

// offline is the datastore while no engine runs.
type offline struct {
	ctx context.Context
	Database
}

func (o offline) Delete(prefix string, match func(string, []byte) bool) (int, error) {
	return o.Database.Delete(o.ctx, prefix, match)
}

// Run restarts the engine when certificates end soon, or when a jump of the clock made them invalid. After a jump back
// tokens and leases are dated in the future, too.
func (k *Renewer) Run(ctx context.Context, stage *lifecycle.Stage) error {
	stage.Ready()
	timer := time.NewTimer(datesLook)
	defer timer.Stop()
	var helped time.Time // time of the last restart for certificates
	for {
		timer.Reset(datesLook)
		if k.check(&helped) {
			timer.Reset(datesCheck)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-k.poke:
		}
	}
}

// check reports whether it restarted the engine.
func (k *Renewer) check(helped *time.Time) bool {
	if !k.may() {
		return false // no certificate is issued now; the next jump or hour checks again
	}
	select {
	case <-k.back:
		k.health.Clear(health.CertificatesInvalid)
		k.engine.Restart("the clock was set back: certificates, tokens and leases may be of the future")
		return true
	default:
	}
	why := Due(k.engine.DataDir(), time.Now())
	switch {
	case why == "":
		k.health.Clear(health.CertificatesInvalid)
	case helped.IsZero() || time.Since(*helped) > datesAgain:
		*helped = time.Now()
		k.engine.Restart(why)
		return true
	default:
		k.health.Set(health.CertificatesInvalid, why+", and a start of the engine has made no new one", "look at "+k.engine.LogFile())
	}
	return false
}
