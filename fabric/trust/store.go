// Package trust stores what is known of clusters beside the records of peers: operator decisions, revocations, invites,
// and the count of starts.
//
// It reads and alone writes the note "trust" of the store, as a whole, before a method returns without an error, so
// changes survive a power cut. All lists are bounded; the oldest entry is removed first, denials last. Time is an
// argument. After a restart everything is read again; an unreadable note keeps the fabric from starting, since it may
// contain a denial.
package trust

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/peer"
)

// Notes stores one blob durably; appliance/state/bolt has it.
type Notes interface {
	Note(name string) ([]byte, error)
	PutNote(name string, blob []byte) error
}

const note = "trust"

// maxEntries bounds each list.
const maxEntries = 256

type Approval struct {
	ID peer.ID `json:"id"`
	// How becomes the trust of the peer's record: peer.TrustApproved or peer.TrustInvite.
	How string    `json:"how"`
	At  time.Time `json:"at"`
}

// Revocation is the stored end of a peering, or the denial of a cluster.
type Revocation struct {
	ID   peer.ID   `json:"id"`
	Name string    `json:"name,omitempty"`
	At   time.Time `json:"at"`
	// Denied: it may not be a peer until an operator here approves it.
	Denied bool `json:"denied,omitempty"`
	// ByPeer: the other side has ended it.
	ByPeer  bool `json:"theirs,omitempty"`
	WasPeer bool `json:"was,omitempty"`
	// Heard and Skip are those of its record: earlier messages are outdated.
	Heard uint64 `json:"heard,omitempty"`
	Skip  uint64 `json:"skip,omitempty"`
	// Number counts revocations: a later one has a higher one, whatever the clock shows. Revoke sets it.
	Number uint64 `json:"number,omitempty"`
	// Undone: the device has undone a join that it could not complete. It may bring its token again.
	Undone bool `json:"-"`
}

type content struct {
	Starts      uint64       `json:"starts"`
	Approvals   []Approval   `json:"yes,omitempty"`
	Revocations []Revocation `json:"partings,omitempty"`
	Invites     []entry      `json:"invites,omitempty"`
	Ends        uint64       `json:"ends,omitempty"` // the Number of the last revocation
}

// Store is the trust store. Its methods may be called concurrently.
type Store struct {
	notes Notes
	mu    sync.Mutex
	c     content
	blob  []byte // c as it was written
	tries map[peer.ID]*Approval
	salt  uint64
}

// Open reads the store and counts a start.
func Open(notes Notes) (*Store, error) {
	b := &Store{notes: notes, tries: map[peer.ID]*Approval{}, salt: rand.Uint64N(1 << saltBits)}
	blob, err := notes.Note(note)
	if err == nil && blob != nil {
		err = json.Unmarshal(blob, &b.c)
	}
	if err != nil {
		return nil, fmt.Errorf("trust: whom this cluster was told to trust cannot be read: %w; restore state.db from a backup", err)
	}
	return b, b.change(func(c *content) { c.Starts++ })
}

// Clear removes all entries, without a running fabric. The count of starts stays, so that this cluster's sequences
// still grow for clusters that have stored earlier ones.
func Clear(notes Notes) error {
	b, err := Open(notes)
	if err != nil {
		return err
	}
	return b.change(func(c *content) { c.Approvals, c.Revocations, c.Invites = nil, nil, nil })
}

// Epoch is the number of this start; it only grows. Its lowest bits are random, since a disk that is restored from a
// backup counts the same starts again.
func (b *Store) Epoch() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.c.Starts<<saltBits | b.salt
}

const saltBits = 12

// change writes the content if f has changed it, and keeps the changed one in memory only if that succeeded.
func (b *Store) change(f func(*content)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.c
	next.Approvals, next.Revocations, next.Invites = slices.Clone(next.Approvals), slices.Clone(next.Revocations), slices.Clone(next.Invites)
	f(&next)
	next.Approvals, next.Revocations, next.Invites = newest(next.Approvals), bounded(next.Revocations), newest(next.Invites)
	blob, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("trust: %w", err)
	}
	if bytes.Equal(blob, b.blob) {
		return nil
	}
	if err := b.notes.PutNote(note, blob); err != nil {
		return err
	}
	b.c, b.blob = next, blob
	return nil
}

func newest[T any](list []T) []T {
	return slices.Delete(list, 0, max(0, len(list)-maxEntries))
}

// bounded keeps the newest, and denials before all others: anybody can become a peer of a LAN and end the peering
// again, and each time leaves a revocation.
func bounded(list []Revocation) []Revocation {
	for i := 0; i < len(list) && len(list) > maxEntries; {
		if list[i].Denied {
			i++
		} else {
			list = slices.Delete(list, i, i+1)
		}
	}
	return newest(list)
}

// Approve stores an approval; a denial is removed.
func (b *Store) Approve(id peer.ID, how string, now time.Time) error {
	return b.change(func(c *content) {
		c.Approvals = append(slices.DeleteFunc(c.Approvals, func(y Approval) bool { return y.ID == id }), Approval{ID: id, How: how, At: now})
		for i := range c.Revocations {
			if c.Revocations[i].ID == id {
				c.Revocations[i].Denied = false // Heard stays: what is old is still old
			}
		}
	})
}

// Try approves a cluster until stop is called, in memory alone: an attempt that fails or is cut off leaves what was. Revoke
// ends it.
func (b *Store) Try(id peer.ID, how string, now time.Time) (stop func()) {
	try := &Approval{ID: id, How: how, At: now}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tries[id] = try
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.tries[id] == try {
			delete(b.tries, id)
		}
	}
}

func (b *Store) Unapprove(id peer.ID) error {
	if !b.approved(id) {
		return nil
	}
	return b.change(func(c *content) {
		c.Approvals = slices.DeleteFunc(c.Approvals, func(y Approval) bool { return y.ID == id })
	})
}

// Approved returns the approval of a cluster that is no peer yet.
func (b *Store) Approved(id peer.ID) (Approval, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if try := b.tries[id]; try != nil {
		return *try, true
	}
	i := slices.IndexFunc(b.c.Approvals, func(y Approval) bool { return y.ID == id })
	if i < 0 {
		return Approval{}, false
	}
	return b.c.Approvals[i], true
}

// approved reports whether an approval is stored.
func (b *Store) approved(id peer.ID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.c.Approvals, func(y Approval) bool { return y.ID == id })
}

// Rejoin removes the revocation: the cluster is about to be a peer. The approval stays until Met.
func (b *Store) Rejoin(id peer.ID) error {
	if _, parted := b.Revocation(id); !parted {
		return nil
	}
	return b.change(func(c *content) {
		c.Revocations = slices.DeleteFunc(c.Revocations, func(p Revocation) bool { return p.ID == id })
	})
}

// Met removes the approval: the cluster is a peer now.
func (b *Store) Met(id peer.ID) error {
	if !b.approved(id) {
		return nil
	}
	return b.change(func(c *content) { c.forget(id) })
}

func (c *content) forget(id peer.ID) {
	c.Approvals = slices.DeleteFunc(c.Approvals, func(y Approval) bool { return y.ID == id })
	c.Revocations = slices.DeleteFunc(c.Revocations, func(p Revocation) bool { return p.ID == id })
}

// Revoke stores that a cluster is no peer, in place of earlier entries. What let the cluster in is used up by the same
// write.
func (b *Store) Revoke(p Revocation) error {
	err := b.change(func(c *content) {
		for _, old := range c.Revocations {
			if old.ID == p.ID {
				p.WasPeer, p.Heard, p.Skip = p.WasPeer || old.WasPeer, max(p.Heard, old.Heard), max(p.Skip, old.Skip)
			}
		}
		c.forget(p.ID)
		for i := range c.Invites {
			if x := &c.Invites[i]; x.UsedBy == p.ID && !p.Undone {
				x.Spent = true
			}
		}
		c.Ends++
		p.Number = c.Ends
		c.Revocations = append(c.Revocations, p)
	})
	if err == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.tries, p.ID)
	}
	return err
}

// Restore puts back a revocation that Rejoin has removed, as it was: the cluster has not become a peer.
func (b *Store) Restore(p Revocation) error {
	return b.change(func(c *content) { c.Revocations = append(c.Revocations, p) })
}

func (b *Store) Revocation(id peer.ID) (Revocation, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.c.Revocations, func(p Revocation) bool { return p.ID == id })
	if i < 0 {
		return Revocation{}, false
	}
	return b.c.Revocations[i], true
}

// Revocations returns all of them, the oldest first.
func (b *Store) Revocations() []Revocation {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.c.Revocations)
}

// Forget removes all entries of the cluster.
func (b *Store) Forget(id peer.ID) error { return b.change(func(c *content) { c.forget(id) }) }
