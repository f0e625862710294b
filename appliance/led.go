package appliance

import (
	"context"

	"rivulet/appliance/health"
	"rivulet/appliance/led"
	"rivulet/appliance/lifecycle"
)

// showLamp says with the lamp of a device of the image what its screen would.
func (s *System) showLamp(ctx context.Context) {
	if !s.page.image {
		return
	}
	led.Run(ctx, led.Dir, func() led.State { return lampState(s.problems(), s.manager.Status()) }, s.cfg.Log.With("component", "led"))
}

// lampState is what a lamp can tell of all that: what is an error goes first, a start
// that takes its time is none.
func lampState(problems []health.Problem, stages []lifecycle.Status) led.State {
	for _, p := range problems {
		if p.Severity == health.Error {
			return led.Wrong
		}
	}
	if ready, _ := readiness(stages); !ready {
		return led.Starting
	}
	return led.Well
}
