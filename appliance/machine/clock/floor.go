package clock

import (
	"encoding/json"
	"fmt"
	"time"
)

// noteName is the note of state.db.
const noteName = "clock"

// lifetime of a program: nobody runs it for longer, so a clock that says so is wrong.
const lifetime = 20 * 365 * 24 * time.Hour

// floor is the earliest that it can be.
type floor struct {
	// Built is when this program was made.
	Built time.Time `json:"-"`
	// Last is the latest time that this device has seen; it may have been wrong.
	Last time.Time `json:"last"`
	// Proven is the latest that a time service has vouched for.
	Proven time.Time `json:"proven"`
}

// at is the floor.
func (f floor) at() time.Time { return latest(f.Built, f.Last, f.Proven) }

// ceiling is the latest that it can be.
func (f floor) ceiling() time.Time { return f.Built.Add(lifetime) }

// admits reports whether it can be t, by all that was seen.
func (f floor) admits(t time.Time) bool {
	return !t.Before(f.at().Add(-Far)) && !t.After(f.ceiling())
}

// possible reports whether it can be t, by what is certain: when this program was made.
func (f floor) possible(t time.Time) bool {
	return !t.Before(f.Built.Add(-Far)) && !t.After(f.ceiling())
}

// likely reports whether it can be t, by what is certain and what a time service has said.
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

// load reads the note. One that says what cannot be (a damaged one, or one of a
// clock that was decades ahead) is not believed: the build's time is floor enough.
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
