package vcluster

import (
	"sync"
	"time"

	"rivulet/offload/offer"
)

const (
	// maxFlaps bounds the delay for pods that become ready and unready in turn: to 16 min.
	maxFlaps = 4
	// calm is the time without such a start after which the delay is the shortest again.
	calm = time.Hour
	// fallingAsleep is the longest time from a process's last read of the host until its end.
	fallingAsleep = 5 * time.Second
)

// debt is what a virtual cluster that sleeps has not seen of its pods at the host. It compares states: an event may be
// missed, while the supervisor or the host does not run.
type debt struct {
	mu      sync.Mutex
	touched time.Time // the last change
	at      time.Time // when it is due; zero: not due
	// ready: readiness alone changed, which may go on for ever. flaps counts successive starts for that, flapped is the
	// last one.
	ready   bool
	flaps   int
	flapped time.Time
}

// touch notes a change.
func (d *debt) touch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.touched = time.Now()
}

// seen returns the state that a process has seen that has just ended, with before at its last end. It differs from now if
// the process may have missed a change: in readiness alone if there are the same pods as before, or before is unknown.
func (d *debt) seen(now, before offer.PodsState) offer.PodsState {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case time.Since(d.touched) >= fallingAsleep:
		return now
	case before.Pods != now.Pods && before != offer.PodsState{}:
		return before
	}
	return offer.PodsState{Pods: now.Pods, Ready: "missed"}
}

// compare sets when it is due, pause after the first difference between the states and later for readiness alone.
func (d *debt) compare(now, seen offer.PodsState, pause time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now == seen {
		d.at = time.Time{}
		return
	}
	if time.Since(d.flapped) > calm {
		d.flaps = 0
	}
	if d.ready = now.Pods == seen.Pods; d.ready {
		pause <<= min(d.flaps, maxFlaps)
	}
	if at := time.Now().Add(pause); d.at.IsZero() || at.Before(d.at) {
		d.at = at
	}
}

// due returns when a start is due; zero is never.
func (d *debt) due() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

// begin counts a start that is due.
func (d *debt) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ready && !d.at.IsZero() && !d.at.After(time.Now()) {
		d.flaps++
		d.flapped = time.Now()
	}
}

// paid is called when a process runs, or cannot.
func (d *debt) paid() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = time.Time{}
}
