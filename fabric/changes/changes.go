// Package changes notifies followers that a value has changed. A notification carries no value: a follower reads the
// current one, so several changes may arrive as one. It stores nothing.
package changes

import (
	"context"
	"sync"
)

// Signal notifies the followers of one value. Its zero value is ready. Its methods may be called concurrently and with
// locks held: none of them waits for a follower.
type Signal struct {
	mu        sync.Mutex
	followers map[chan struct{}]struct{}
}

// Changed returns a channel that receives after Notify, and the function that ends the subscription. Several Notify
// calls may arrive as one value.
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

func (s *Signal) Notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.followers {
		select {
		case c <- struct{}{}:
		default: // the last notification has not been received yet
		}
	}
}

// Follow notifies s after each change of any of the others, given by their Changed, until ctx ends. It returns when it
// follows all of them.
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
