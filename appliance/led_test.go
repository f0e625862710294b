package appliance

import (
	"testing"

	"rivulet/appliance/health"
	"rivulet/appliance/led"
	"rivulet/appliance/lifecycle"
)

// A mistake in rivulet.yaml or a datastore that was damaged makes the lamp blink even
// while the device starts; what only works less well does not.
func TestWhatTheLampIsFor(t *testing.T) {
	ready := []lifecycle.Status{}
	for _, name := range []string{cClock, cBundle, cEngine, cNode, cDNS, cService, cFabric, cOffload, cTunnel, cStorage} {
		ready = append(ready, lifecycle.Status{Name: name, State: lifecycle.Ready})
	}
	starting := []lifecycle.Status{{Name: cEngine, State: lifecycle.Starting}}
	for _, c := range []struct {
		kind   *health.Kind
		stages []lifecycle.Status
		want   led.State
	}{
		{nil, ready, led.Well},
		{nil, starting, led.Starting},
		{health.ClockNotSynchronized, ready, led.Well},
		{health.SnapshotFailed, starting, led.Starting},
		{health.Firstboot, ready, led.Wrong},
		{health.Firstboot, starting, led.Wrong},
		{health.ConfigBroken, ready, led.Wrong},
		{health.DatastoreRecovered, ready, led.Wrong},
	} {
		var t0 health.Tracker
		if c.kind != nil {
			t0.Set(c.kind, "x", "y")
		}
		if got := lampState(t0.Problems(), c.stages); got != c.want {
			t.Errorf("%v, %d stages: %v, want %v", c.kind, len(c.stages), got, c.want)
		}
	}
}
