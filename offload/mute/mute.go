// Package mute finds out watches that went mute. A connection that dies without a
// word is found out only by the transport's own pings, and a stream that is stuck
// inside a living connection never; then nothing wakes anybody up, and who waits
// for something to show in a cache waits for ever. So watches are checked by what
// has to show in them: what this process wrote itself, and what one of them says of
// another. What does not show in time is a reason to watch afresh.
//
// A Guard belongs to one set of watches and dies with it; Next is the patience of
// its successor. It reads and writes nothing but itself, and nothing is remembered over a
// restart, which lists everything anyway. Failure as the user sees it: what is not
// in step stays so for Proof, and the log says "a watch of the target went mute".
package mute

import (
	"sync"
	"time"
)

// Proof is how long a watch may take to show what has to be there; it doubles
// with each time that watching afresh did not help, up to Slowest.
const (
	Proof   = 15 * time.Second
	Slowest = 4 * time.Minute
)

// Guard knows since when what is missing in one set of watches.
type Guard[K comparable] struct {
	now func() time.Time

	mu       sync.Mutex
	patience time.Duration
	missing  map[K]time.Time
}

// New makes the Guard of watches that begin now. The patience is Proof for the
// first of their kind, and what Next of the Guard before said for others.
func New[K comparable](patience time.Duration) *Guard[K] {
	return &Guard[K]{now: time.Now, patience: patience, missing: map[K]time.Time{}}
}

// Doubt says that the watches do not show what they have to of k. It returns how long
// they still may take; nothing left means that they are mute.
func (g *Guard[K]) Doubt(k K) (left time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	since, known := g.missing[k]
	if !known {
		since = now
		g.missing[k] = since
	}
	return max(g.patience-now.Sub(since), 0)
}

// Trust says that the watches show of k what they had to; if that was doubted they
// are alive, and the next time is the first again.
func (g *Guard[K]) Trust(k K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, doubted := g.missing[k]; doubted {
		g.patience = Proof
	}
	delete(g.missing, k)
}

// Forget takes a doubt back that proves nothing any more.
func (g *Guard[K]) Forget(k K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.missing, k)
}

// Patience is how long the watches may take.
func (g *Guard[K]) Patience() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.patience
}

// Next is the patience with watches that take the place of these because these were mute.
func (g *Guard[K]) Next() time.Duration { return min(2*g.Patience(), Slowest) }
