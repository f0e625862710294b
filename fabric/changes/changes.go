// Package changes tells who follows a thing that the thing is another now, without
// saying how: he looks himself, and so misses nothing when several changes come as
// one. It reads and writes nothing, and is gone with the process.
package changes

import (
	"context"
	"sync"
)

// Signal is one thing's. Its zero value is ready, and its methods may be called
// concurrently and with locks held: none of them waits for a follower.
type Signal struct {
	mu        sync.Mutex
	followers map[chan struct{}]struct{}
}

// Changed returns a channel that gets a value after each Notify, several as one if
// nobody has looked in between, and the function that ends the subscription.
func (s *Signal) Changed() (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.followers == nil {
		s.followers = map[chan struct{}]struct{}{}
	}
	s.followers[c] = struct{}{}
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.followers, c)
	}
}

// Notify tells all that follow.
func (s *Signal) Notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.followers {
		select {
		case c <- struct{}{}:
		default: // he has not looked since the last one
		}
	}
}

// Follow notifies s after each change of any of the others, given by their Changed, until
// ctx ends. It returns when it follows all of them.
func (s *Signal) Follow(ctx context.Context, others ...func() (<-chan struct{}, func())) {
	for _, changed := range others {
		c, stop := changed()
		go func() {
			defer stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-c:
					s.Notify()
				}
			}
		}()
	}
}
