package changes

import (
	"context"
	"math/rand/v2"
	"time"
)

// Poke puts a value into c, which has room for one, unless one is there already. It never waits.
func Poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Wait returns true after d, and false as soon as ctx ends.
func Wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Backoff gives the pauses between tries: First, then twice as long each time, up to Longest. A random tenth is added,
// so that devices that failed together do not retry together.
type Backoff struct {
	First, Longest time.Duration

	next time.Duration
}

// Next returns the pause before the next try.
func (b *Backoff) Next() time.Duration {
	d := max(b.next, b.First)
	b.next = min(2*d, b.Longest)
	return d + rand.N(d/10+1)
}

// Reset makes the next pause the first one again.
func (b *Backoff) Reset() { b.next = 0 }

// Wait waits for Next, and returns false as soon as ctx ends.
func (b *Backoff) Wait(ctx context.Context) bool { return Wait(ctx, b.Next()) }
