package doctor

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/health"
)

var clock = Probe{Kind: health.Clock, Title: "clock", Run: probeClock}

// timeError is adjtimex's result while the clock is not synchronized.
const timeError = 5

func probeClock(ctx context.Context, e *Env) Result {
	now := e.Now()
	const cure = "connect the device to a network with a time server, or set the clock: date -s; a board without a battery needs one of the two at every boot"
	if floor, of := e.clockFloor(); now.Before(floor.Add(-time.Minute)) {
		return Failf(cure, "it says %s, yet %s is of %s: certificates would not be valid", now.UTC().Format(time.DateTime), of, floor.UTC().Format(time.DateTime))
	}
	if st, ok := e.running(ctx); ok && !st.Clock.Now.IsZero() {
		if !st.Clock.Plausible {
			return Failf(cure, "it says %s, which cannot be: it is later than %s", now.UTC().Format(time.DateTime), st.Clock.Floor.UTC().Format(time.DateTime))
		}
		if ref := st.Clock.Reference; ref != "" && !st.Clock.Synchronized {
			return Passf("no time service keeps it; compared with %s, it is right", ref)
		}
	}
	tx, state, err := e.Adjtimex()
	switch {
	case err != nil:
		return Skipf("the kernel cannot be asked: %v", err)
	case state == timeError || tx.Status&unix.STA_UNSYNC != 0:
		return Warnf("switch a time service on (timedatectl set-ntp true); where the network blocks NTP, name a server that answers",
			"it says %s; no time service keeps it right", now.UTC().Format(time.DateTime+" MST"))
	}
	return Passf("synchronized")
}

// clockFloor is a time that is certainly past: that of a file written by Rivulet.
func (e *Env) clockFloor() (floor time.Time, of string) {
	for _, f := range []string{e.State + "/state.db", "/usr/local/bin/rivulet", "/etc/machine-id"} {
		if at, ok := e.changed(f); ok && at.After(floor) {
			floor, of = at, f
		}
	}
	// Older than this source: nothing to compare with, but wrong in any case.
	if oldest := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC); floor.Before(oldest) {
		return oldest, "this program"
	}
	return floor, of
}
