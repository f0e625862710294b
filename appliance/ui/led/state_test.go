package led

import (
	"testing"

	"rivulet/appliance/health"
)

// A mistake in rivulet.yaml or a datastore that was damaged makes the lamp blink even
// while the device starts; what only works less well does not.
func TestWhatTheLampIsFor(t *testing.T) {
	const ready, starting = true, false
	for _, c := range []struct {
		kind  *health.Kind
		ready bool
		want  State
	}{
		{nil, ready, Well},
		{nil, starting, Starting},
		{health.ClockNotSynchronized, ready, Well},
		{health.SnapshotFailed, starting, Starting},
		{health.Firstboot, ready, Wrong},
		{health.Firstboot, starting, Wrong},
		{health.ConfigBroken, ready, Wrong},
		{health.DatastoreRecovered, ready, Wrong},
	} {
		var t0 health.Tracker
		if c.kind != nil {
			t0.Set(c.kind, "x", "y")
		}
		if got := Of(t0.Problems(), c.ready); got != c.want {
			t.Errorf("%v, ready %v: %v, want %v", c.kind, c.ready, got, c.want)
		}
	}
}
