package pairing

import (
	"math/rand/v2"
	"time"
)

// The waits. A peer on the LAN that is switched on again announces itself, so the long waits matter only where
// discovery does not reach.
const (
	// Grace is how long the side with the higher ID lets the other one start.
	Grace          = 3 * time.Second
	firstWait      = time.Second
	maxUnreachable = 20 * time.Second
	maxRefused     = time.Minute
)

// Pace is when the exchange with one peer is due. It is a value without a clock; the zero Pace has nothing due.
//
//	idle --Found--> due --(attempt)--> Done: idle
//	                 ^        |
//	                 +--wait--+ Failed: 1 s, 2 s, 4 s … 20 s (unreachable) or 60 s (refused), less up to a quarter by chance
type Pace struct {
	next     time.Time
	failures int
}

// Found makes an exchange due: the peer was discovered, has moved, or was lost. Starts is true for the side that goes
// first. An earlier due time stays.
func (p *Pace) Found(now time.Time, starts bool) {
	at := now
	if !starts {
		at = now.Add(Grace)
	}
	p.failures = 0
	if p.next.IsZero() || at.Before(p.next) {
		p.next = at
	}
}

// Failed puts the next attempt off, longer each time. A part of the wait is by chance, so that devices that lost power
// together do not try again together.
func (p *Pace) Failed(now time.Time, refused bool) {
	limit := maxUnreachable
	if refused {
		limit = maxRefused
	}
	wait := min(firstWait<<min(p.failures, 10), limit)
	p.failures++
	p.next = now.Add(wait - rand.N(wait/4+1))
}

// Done ends the attempts until the next Found.
func (p *Pace) Done() { *p = Pace{} }

// Next returns when the exchange is due, and false if it is not due at all.
func (p Pace) Next() (time.Time, bool) { return p.next, !p.next.IsZero() }
