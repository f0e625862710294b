package tenant

import (
	"context"
	"os"
	"sync"
	"time"
)

// Use is who uses the control plane: requests of all but its own parts, watches and streams
// for as long as they last. Its methods may be called at any time.
type Use struct {
	now  func() time.Time
	mu   sync.Mutex
	open int
	last time.Time // when the last one ended
}

// NewUse counts from now on.
func NewUse(now func() time.Time) *Use { return &Use{now: now, last: now()} }

// Begin counts a request until the function that it returns is called.
func (u *Use) Begin() (end func()) {
	u.mu.Lock()
	u.open++
	u.mu.Unlock()
	return sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.open--
		u.last = u.now()
	})
}

func (u *Use) touch() { u.Begin()() }

// Unused is for how long nobody has used it; 0 while somebody does.
func (u *Use) Unused() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open > 0 {
		return 0
	}
	return max(u.now().Sub(u.last), 0)
}

// waitIdle returns when nobody has used it for so long, 0 never does; after a signal for ReplaceIdle at most.
func (u *Use) waitIdle(ctx context.Context, idle time.Duration, replaced <-chan os.Signal) {
	for {
		wait := time.Minute
		if idle > 0 {
			if wait = idle - u.Unused(); wait <= 0 {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-replaced:
			if idle == 0 || idle > ReplaceIdle {
				idle = ReplaceIdle
			}
		case <-time.After(min(wait, time.Minute)):
		}
	}
}
