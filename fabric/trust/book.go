// Package trust is what is remembered of clusters beside the records of peers:
// whom a person has said yes or no to, who is a peer no more, which invites are
// out, and how often we have started.
//
// It reads and alone writes the note "trust" of the store, as a whole, before a
// method returns without an error: what it has said yes to survives a power cut. All
// lists are bounded; the oldest entry makes room. It takes the time as an argument.
// After a restart everything is found again; a note that cannot be read keeps the
// fabric from starting, since it may hold a no.
package trust

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/peer"
)

// Notes keeps one blob durably; appliance/store has it.
type Notes interface {
	Note(name string) ([]byte, error)
	PutNote(name string, blob []byte) error
}

const note = "trust"

// maxEntries bounds each list.
const maxEntries = 256

// Yes is the word of a person that a cluster may be a peer.
type Yes struct {
	ID peer.ID `json:"id"`
	// How is what the peer's record will say: peer.TrustApproved or peer.TrustInvite.
	How string    `json:"how"`
	At  time.Time `json:"at"`
}

// Parting is what is left of a peer that is one no more, or of a cluster that was
// denied.
type Parting struct {
	ID   peer.ID   `json:"id"`
	Name string    `json:"name,omitempty"`
	At   time.Time `json:"at"`
	// Denied: it may not be a peer until a person here says otherwise.
	Denied bool `json:"denied,omitempty"`
	// Theirs: the other side has ended it.
	Theirs bool `json:"theirs,omitempty"`
	// Was: it was a peer.
	Was bool `json:"was,omitempty"`
	// Heard and Skip are those of its record: what it said before is old.
	Heard uint64 `json:"heard,omitempty"`
	Skip  uint64 `json:"skip,omitempty"`
}

type content struct {
	Starts   uint64    `json:"starts"`
	Yes      []Yes     `json:"yes,omitempty"`
	Partings []Parting `json:"partings,omitempty"`
	Invites  []entry   `json:"invites,omitempty"`
}

// Book is the memory. Its methods may be called concurrently.
type Book struct {
	notes Notes
	mu    sync.Mutex
	c     content
	salt  uint64
}

// Open reads the book and counts a start.
func Open(notes Notes) (*Book, error) {
	b := &Book{notes: notes, salt: rand.Uint64N(1 << saltBits)}
	blob, err := notes.Note(note)
	if err == nil && blob != nil {
		err = json.Unmarshal(blob, &b.c)
	}
	if err != nil {
		return nil, fmt.Errorf("trust: whom this cluster was told to trust cannot be read: %w; restore state.db from a backup", err)
	}
	return b, b.change(func(c *content) { c.Starts++ })
}

// Clear forgets all that was said, without a running fabric. How often this cluster
// has started stays: it goes on being newer for who remembers it.
func Clear(notes Notes) error {
	b, err := Open(notes)
	if err != nil {
		return err
	}
	return b.change(func(c *content) { c.Yes, c.Partings, c.Invites = nil, nil, nil })
}

// Epoch is the number of this start; it only grows. Its lowest bits are random: a disk
// that is brought back to an earlier day counts the same starts again.
func (b *Book) Epoch() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.c.Starts<<saltBits | b.salt
}

const saltBits = 12

// change writes the changed content and takes it in only if that succeeded.
func (b *Book) change(f func(*content)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.c
	next.Yes, next.Partings, next.Invites = slices.Clone(next.Yes), slices.Clone(next.Partings), slices.Clone(next.Invites)
	f(&next)
	next.Yes, next.Partings, next.Invites = newest(next.Yes), newest(next.Partings), newest(next.Invites)
	blob, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("trust: %w", err)
	}
	if err := b.notes.PutNote(note, blob); err != nil {
		return err
	}
	b.c = next
	return nil
}

func newest[T any](list []T) []T {
	return slices.Delete(list, 0, max(0, len(list)-maxEntries))
}

// Approve notes a yes; a no is forgotten.
func (b *Book) Approve(id peer.ID, how string, now time.Time) error {
	return b.change(func(c *content) {
		c.Yes = append(slices.DeleteFunc(c.Yes, func(y Yes) bool { return y.ID == id }), Yes{ID: id, How: how, At: now})
		for i := range c.Partings {
			if c.Partings[i].ID == id {
				c.Partings[i].Denied = false // Heard stays: what is old is still old
			}
		}
	})
}

// Unapprove forgets a yes.
func (b *Book) Unapprove(id peer.ID) error {
	if _, approved := b.Approved(id); !approved {
		return nil
	}
	return b.change(func(c *content) {
		c.Yes = slices.DeleteFunc(c.Yes, func(y Yes) bool { return y.ID == id })
	})
}

// Approved returns the yes to a cluster that is no peer yet.
func (b *Book) Approved(id peer.ID) (Yes, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.c.Yes, func(y Yes) bool { return y.ID == id })
	if i < 0 {
		return Yes{}, false
	}
	return b.c.Yes[i], true
}

// Rejoin forgets the parting: the cluster is about to be a peer. The yes stays until Met.
func (b *Book) Rejoin(id peer.ID) error {
	if _, parted := b.Parting(id); !parted {
		return nil
	}
	return b.change(func(c *content) {
		c.Partings = slices.DeleteFunc(c.Partings, func(p Parting) bool { return p.ID == id })
	})
}

// Met forgets the yes: the cluster is a peer now.
func (b *Book) Met(id peer.ID) error {
	if _, approved := b.Approved(id); !approved {
		return nil
	}
	return b.change(func(c *content) { c.forget(id) })
}

func (c *content) forget(id peer.ID) {
	c.Yes = slices.DeleteFunc(c.Yes, func(y Yes) bool { return y.ID == id })
	c.Partings = slices.DeleteFunc(c.Partings, func(p Parting) bool { return p.ID == id })
}

// Part notes that a cluster is no peer, in place of what was noted of it before.
func (b *Book) Part(p Parting) error {
	return b.change(func(c *content) {
		for _, old := range c.Partings {
			if old.ID == p.ID {
				p.Was, p.Heard, p.Skip = p.Was || old.Was, max(p.Heard, old.Heard), max(p.Skip, old.Skip)
			}
		}
		c.forget(p.ID)
		c.Partings = append(c.Partings, p)
	})
}

// Parting returns what is left of a cluster.
func (b *Book) Parting(id peer.ID) (Parting, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.c.Partings, func(p Parting) bool { return p.ID == id })
	if i < 0 {
		return Parting{}, false
	}
	return b.c.Partings[i], true
}

// Partings returns all of them, the oldest first.
func (b *Book) Partings() []Parting {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.c.Partings)
}

// Forget takes everything back that was said of the cluster.
func (b *Book) Forget(id peer.ID) error { return b.change(func(c *content) { c.forget(id) }) }
