package appliance

import (
	"context"

	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/version"
)

// newClock is called before anything runs: peers may ask it at any time.
func (s *System) newClock() *clock.Clock {
	log := s.cfg.Log.With("component", cClock)
	return clock.New(clock.Config{
		System: clock.Machine(log), Built: version.Built(), Store: s.store, Health: &s.health,
		Jumped: func(j clock.Jump) { s.dates.Jumped(j.By) }, Log: log,
	})
}

func (s *System) runClock(ctx context.Context, stage *lifecycle.Stage) error {
	return s.clock.Run(ctx, stage.Waiting, stage.Ready)
}
