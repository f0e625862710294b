package clock

import (
	"encoding/json"
	"fmt"
	"time"
)

// noteName is the note of state.db.
const noteName = "clock"

// lifetime of a program: a clock that is later than that after the build is wrong.
const lifetime = 20 * 365 * 24 * time.Hour

// floor is the earliest plausible time.
type floor struct {
	// Built is the build time of this program.
	Built time.Time `json:"-"`
	// Last is the latest time seen on this device; it may have been wrong.
	Last time.Time `json:"last"`
	// Proven is the latest time confirmed by a time service.
	Proven time.Time `json:"proven"`
}

// at is the floor.
func (f floor) at() time.Time { return latest(f.Built, f.Last, f.Proven) }

// ceiling is the latest plausible time.
func (f floor) ceiling() time.Time { return f.Built.Add(lifetime) }

// admits reports whether t is plausible by all that was seen.
func (f floor) admits(t time.Time) bool {
	return !t.Before(f.at().Add(-Far)) && !t.After(f.ceiling())
}

// possible reports whether t is plausible by the build time alone.
func (f floor) possible(t time.Time) bool {
	return !t.Before(f.Built.Add(-Far)) && !t.After(f.ceiling())
}

// likely reports whether t is plausible by the build time and time services.
func (f floor) likely(t time.Time) bool {
	return f.possible(t) && !t.Before(f.Proven.Add(-Far))
}

// seen raises the floor to now.
func (f *floor) seen(now time.Time, synchronized bool) {
	if !f.admits(now) {
		return
	}
	f.Last = latest(f.Last, now)
	if synchronized {
		f.Proven = latest(f.Proven, now)
	}
}

func latest(ts ...time.Time) (t time.Time) {
	for _, o := range ts {
		if o.After(t) {
			t = o
		}
	}
	return t
}

// load reads the note. An implausible one (damaged, or of a clock decades ahead) is ignored: then the build time is the
// floor.
func (c *Clock) load() error {
	blob, err := c.cfg.Store.Note(noteName)
	if err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	f := floor{}
	if blob != nil {
		if err := json.Unmarshal(blob, &f); err != nil {
			c.log.Warn("the saved time is unreadable; going on without", "err", err)
			f = floor{}
		}
	}
	f.Built = c.cfg.Built
	for _, t := range []*time.Time{&f.Last, &f.Proven} {
		if t.After(f.ceiling()) {
			*t = time.Time{}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.floor = f
	return nil
}

// due reports whether the note should be written: there is news, or an hour has passed.
func (c *Clock) due(news bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return news || c.sys.Boot()-c.saved >= saveEvery
}

// save writes the note.
func (c *Clock) save() error {
	c.mu.Lock()
	c.floor.seen(c.sys.Now().UTC().Truncate(time.Second), c.disc.Synchronized)
	c.saved = c.sys.Boot()
	blob, err := json.Marshal(c.floor)
	c.mu.Unlock()
	if err == nil {
		err = c.cfg.Store.PutNote(noteName, blob)
	}
	if err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	return nil
}
