package clock

import (
	"fmt"
	"strings"
	"time"
)

// Status is the part of `rivulet status` about the clock.
type Status struct {
	Now time.Time `json:"now"`
	// Source is one of the From constants.
	Source string `json:"source"`
	// Synchronized is true while a time service synchronizes the clock.
	Synchronized bool `json:"synchronized"`
	// Plausible is false while the time is implausible.
	Plausible bool `json:"plausible"`
	// Floor is the earliest plausible time.
	Floor time.Time `json:"floor"`
	// Offset is how far the clock is ahead of the reference, nanoseconds; Reference is "ntp" or the names of peers, and
	// empty without a reference.
	Offset    time.Duration `json:"offset"`
	Reference string        `json:"reference,omitempty"`
	// Jump is the last one since the start of rivulet.
	Jump *Jump `json:"jump,omitempty"`
}

// Status returns the clock as it is now.
func (c *Clock) Status() Status {
	now, boot := c.sys.Now(), c.sys.Boot()
	c.mu.Lock()
	defer c.mu.Unlock()
	st := Status{
		Now: now, Source: c.source, Synchronized: c.disc.Synchronized, Plausible: c.floor.admits(now),
		Floor: c.floor.at(), Jump: c.jump,
	}
	if c.disc.Synchronized {
		st.Offset, st.Reference = -c.disc.Offset, FromNTP
	} else if theirs, names, _ := c.peers.now(boot, c.floor); len(names) > 0 {
		st.Offset, st.Reference = now.Round(0).Sub(theirs), strings.Join(names, ", ")
	}
	return st
}

// Plausible returns the time, and whether it can be right.
func (c *Clock) Plausible() (time.Time, bool) { return c.sys.Now(), c.plausible() }

// Right reports whether a time service or peers confirm the time now. What a wrong clock must not do waits for that.
func (s Status) Right() bool {
	return s.Plausible && s.Reference != "" && s.Offset.Abs() <= agreeWithin
}

// String is the clock on one line.
func (s Status) String() string {
	line := "not synchronized, source " + s.Source
	switch {
	case !s.Plausible:
		line = "cannot be right"
	case s.Synchronized:
		line = "synchronized, source " + s.Source
	}
	if s.Reference != "" {
		line += fmt.Sprintf(", offset %s to %s", s.Offset.Round(time.Microsecond), s.Reference)
	}
	line += ", not before " + s.Floor.UTC().Format(time.DateTime)
	if s.Jump != nil {
		line += fmt.Sprintf(", jumped by %s at %s", s.Jump.By.Round(time.Second), s.Jump.At.UTC().Format(time.DateTime))
	}
	return line
}
