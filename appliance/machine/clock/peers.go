package clock

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// agreeWithin is how far two clocks may be apart and still say the same; a clock
	// that is off by less is left alone.
	agreeWithin = time.Minute
	// fresh is how long what a peer said counts.
	fresh = time.Minute
	// slow is the round trip after which an answer says too little.
	slow = 5 * time.Second
)

// sample is what one peer last said of its clock.
type sample struct {
	name         string
	synchronized bool
	// bootTime is what the peer's clock said, minus our time since boot: it stays
	// true whoever sets our own clock.
	bootTime  time.Time
	at        time.Duration // since our boot
	roundTrip time.Duration
}

// peers holds the samples by peer.
type peers map[string]sample

// take stores a sample and reports whether it is the peer's first in a while, or news.
func (p peers) take(id string, s sample) (news bool) {
	old, had := p[id]
	p[id] = s
	for id, o := range p {
		if s.at-o.at > fresh {
			delete(p, id) // nobody that is long gone, however many come and go
		}
	}
	return !had || s.at-old.at > fresh || old.synchronized != s.synchronized || apart(old.bootTime, s.bootTime) > agreeWithin
}

// now returns what time it is by the peers that know, and who they are; none if
// nobody knows or they do not agree, and then why says so for people. Of three and
// more, more than half must agree; of two, both.
func (p peers) now(boot time.Duration, f floor) (now time.Time, names []string, why string) {
	var known []sample
	for _, s := range p {
		if s.synchronized && boot-s.at <= fresh && s.roundTrip <= slow && f.likely(s.bootTime.Add(boot)) {
			known = append(known, s)
		}
	}
	if len(known) == 0 {
		return time.Time{}, nil, ""
	}
	slices.SortFunc(known, func(a, b sample) int {
		if c := a.bootTime.Compare(b.bootTime); c != 0 {
			return c
		}
		return strings.Compare(a.name, b.name)
	})
	median := known[(len(known)-1)/2]
	for _, s := range known {
		if apart(s.bootTime, median.bootTime) <= agreeWithin {
			names = append(names, s.name)
		}
	}
	if 2*len(names) <= len(known) {
		var say []string
		for _, s := range known {
			say = append(say, fmt.Sprintf("%s says %s", s.name, s.bootTime.Add(boot).UTC().Format(time.DateTime)))
		}
		return time.Time{}, nil, "peers do not agree: " + strings.Join(say, ", ")
	}
	return median.bootTime.Add(boot), names, ""
}

func apart(a, b time.Time) time.Duration { return a.Round(0).Sub(b.Round(0)).Abs() }
