package peering

import (
	"time"

	"rivulet/fabric/peer"
)

// Pings is when to ping a peer that answers. The side that has pinged first goes on, and its pings are the other side's
// proof: each comes over a connection on which the one before was answered, so both directions work. That one measures
// the round trip only now and then, unless it seems to have changed. While the tunnel's own pings show that the path
// works, pings are rare: a path that fails and a connection that the peer's process has left make one needed at once.
// Like a Machine, it has no clock and no lock.
type Pings struct {
	interval time.Duration
	own      time.Time // the last answer; zero if one is needed
	received time.Time // the last ping of the peer
	class    int       // of the round trip
	unsure   int       // how many answers are needed to see whether it has changed
	doubted  time.Time // when it last seemed to have changed
}

// NewPings returns the Pings of a peer in this interval.
func NewPings(interval time.Duration) Pings { return Pings{interval: interval} }

// Answered processes an answer.
func (p *Pings) Answered(now time.Time, rtt time.Duration) {
	p.own = now
	if class := peer.Nearness(rtt); class != p.class && now.Sub(p.doubted) >= doubtEvery*p.interval {
		p.class, p.unsure, p.doubted = class, lasting, now
	} else if p.unsure > 0 {
		p.unsure--
	}
}

// Needed makes an answer needed at once: one was missed, or the link may have changed.
func (p *Pings) Needed() { p.own = time.Time{} }

// Received processes a ping of the peer.
func (p *Pings) Received(now time.Time) { p.received = now }

// LastReceived is when the peer last pinged; zero if it never has.
func (p *Pings) LastReceived() time.Time { return p.received }

// In units of the interval: measureEvery is the longest interval of pings to a peer that pings this cluster, calm that of
// pings on a path that works.
// DoubtEvery is how often answers of another class cause more pings: on a busy machine each may be of another one.
const measureEvery, calm, doubtEvery = 10, 10, 100

// Rest is how long no ping to a connected peer is needed. Works reports that the tunnel shows that its path works.
func (p *Pings) Rest(now time.Time, works bool) time.Duration {
	interval, longest := p.interval, measureEvery*p.interval
	if works && p.unsure == 0 {
		interval, longest = calm*interval, 3*longest
	}
	next := p.own.Add(interval)
	if theirs := p.received.Add(interval * 3 / 2); theirs.After(next) && p.unsure == 0 {
		next = theirs
	}
	if last := p.own.Add(longest); last.Before(next) {
		next = last
	}
	if rest := next.Sub(now); rest > p.interval/4 {
		return rest
	}
	return 0
}
