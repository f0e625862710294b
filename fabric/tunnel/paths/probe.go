package paths

import "time"

// Timing is how often paths are checked.
type Timing struct {
	// Active is the interval of pings on the path in use, Standby that on others that work.
	Active, Standby time.Duration
	// Fast follows a ping that was not answered; after Misses in a row the path is dead.
	Fast   time.Duration
	Misses int
	// First is the first wait on a path that has not answered yet. It doubles up to Search
	// while there is no direct path, and up to Idle while there is.
	First, Search, Idle time.Duration
	// Help is how long a peer may be without a direct path before relays are tried, Dial how long before a stream is
	// dialled.
	Help, Dial time.Duration
	// Advertise is how often candidates are advertised again while there is no direct path.
	Advertise time.Duration
	// Dwell is how long a path is used before another of the same kind may replace it.
	Dwell time.Duration
	// Forget is how long a learnt path is kept after it has died, and how long relays and streams stay beside a direct
	// path.
	Forget time.Duration
}

var DefaultTiming = Timing{
	Active: 2 * time.Second, Standby: 10 * time.Second, Fast: 400 * time.Millisecond, Misses: 4,
	First: 250 * time.Millisecond, Search: 5 * time.Second, Idle: time.Minute,
	Help: 1500 * time.Millisecond, Dial: 2500 * time.Millisecond, Advertise: 5 * time.Second,
	Dwell: 10 * time.Second, Forget: time.Minute,
}

// freshPings is how many pings soon follow the first answered one.
const freshPings = 8

// probe is the state of pings on one path; it is a value without a clock.
//
//	trying --pong--> alive --Misses unanswered--> trying
type probe struct {
	alive  bool
	rtt    time.Duration // smoothed
	misses int
	tries  int       // since it was last alive
	next   time.Time // when to ping
	open   bool      // the last ping is not answered yet
	fresh  int       // pings that follow soon, since one measurement is not enough
}

// sent records a ping and schedules the next one. Direct: there is a direct path, so this one is less urgent.
func (p *probe) sent(now time.Time, t Timing, direct bool) {
	if p.alive && p.open {
		if p.misses++; p.misses >= t.Misses {
			p.alive, p.tries = false, 0
		}
	}
	p.open = true
	wait := max(t.Fast, 3*p.rtt) // an answer delays it
	if !p.alive {
		limit := t.Search
		if direct {
			limit = t.Idle
		}
		wait = min(t.First<<min(p.tries, 12), limit)
		p.tries++
	}
	p.next = now.Add(wait)
}

// answered records a pong and reports whether the path was dead before.
func (p *probe) answered(now time.Time, rtt time.Duration, t Timing, used bool) (news bool) {
	news = !p.alive
	switch {
	case news || p.rtt == 0:
		p.rtt, p.fresh = rtt, freshPings
	case rtt < p.rtt: // the path takes no longer than that: the rest was queueing
		p.rtt += (rtt - p.rtt) / 2
	default:
		p.rtt += (rtt - p.rtt) / 8
	}
	p.alive, p.open, p.misses, p.tries = true, false, 0, 0
	wait := t.Standby
	if used {
		wait = t.Active
	}
	if p.fresh > 0 {
		p.fresh--
		wait = t.Fast
	}
	p.next = now.Add(wait)
	return news
}

// leave leaves the pings on the path in use to the peer, which receives the answers: otherwise it would ping fast. This
// side measures as often as on other paths.
func (p *probe) leave(now, proved time.Time, t Timing) {
	next := now.Add(t.Active * 3 / 2)
	if last := proved.Add(t.Standby); last.Before(next) {
		next = last
	}
	if p.alive && !p.open && p.fresh == 0 && next.After(p.next) {
		p.next = next
	}
}

// again makes the path be tried at once, as if it were new.
func (p *probe) again(now time.Time) {
	if !p.alive {
		p.tries = 0
	}
	p.next = now
}

// doubt discards the measurements of a path: one of the two ends has moved.
func (p *probe) doubt(now time.Time) {
	p.alive, p.open, p.misses, p.tries, p.next = false, false, 0, 0, now
}
