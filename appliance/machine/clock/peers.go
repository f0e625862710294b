package clock

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// agreeWithin is the largest difference of two clocks that agree; a clock with a smaller error is not corrected.
	agreeWithin = time.Minute
	// fresh is how long a peer's reading is valid.
	fresh = time.Minute
	// slow is the round trip from which a reading is too imprecise.
	slow = 5 * time.Second
)

// sample is a peer's last reading.
type sample struct {
	name         string
	synchronized bool
	// bootTime is the peer's clock minus this device's time since boot: it stays valid when the local clock is set.
	bootTime  time.Time
	at        time.Duration // since this device's boot
	roundTrip time.Duration
}

// peers holds the samples by peer.
type peers map[string]sample

// take stores a sample and reports whether it differs from the peer's last one, or is its first for a while.
func (p peers) take(id string, s sample) (news bool) {
	old, had := p[id]
	p[id] = s
	for id, o := range p {
		if s.at-o.at > fresh {
			delete(p, id) // bounds the map over many short-lived peers
		}
	}
	return !had || s.at-old.at > fresh || old.synchronized != s.synchronized || apart(old.bootTime, s.bootTime) > agreeWithin
}

// now returns the time by peers with a time service, and their names; none without such peers or agreement, with why as
// the reason for users. Of three and more, more than half must agree; of two, both.
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
	return agreed(known, boot, "peers")
}

// agreed returns the time of a majority, and its names; of two, both must agree. Otherwise why says who says what.
func agreed(known []sample, boot time.Duration, who string) (now time.Time, names []string, why string) {
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
		return time.Time{}, nil, who + " do not agree: " + strings.Join(say, ", ")
	}
	return median.bootTime.Add(boot), names, ""
}

func apart(a, b time.Time) time.Duration { return a.Round(0).Sub(b.Round(0)).Abs() }
