package controlplane

import (
	"context"
	"os"
	"sync"
	"time"
)

// Use counts the use of the control plane: requests except those of its own parts, watches and streams as long as they
// last. Its methods may be called at any time.
type Use struct {
	now  func() time.Time
	mu   sync.Mutex
	open int
	used bool          // since reset
	last time.Time     // end of the last one
	most time.Duration // limit of waitIdle, which alone uses it; 0: none
}

// NewUse counts from now on.
func NewUse(now func() time.Time) *Use { return &Use{now: now, last: now()} }

// Begin counts a request until the returned function is called.
func (u *Use) Begin() (end func()) {
	u.mu.Lock()
	u.open++
	u.used = true
	u.mu.Unlock()
	return sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.open--
		u.last = u.now()
	})
}

// reset counts from now on.
func (u *Use) reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.used, u.last = false, u.now()
}

// Unused returns the time without use, 0 while in use, and whether there was use since reset.
func (u *Use) Unused() (unused time.Duration, used bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open > 0 {
		return 0, true
	}
	return max(u.now().Sub(u.last), 0), u.used
}

// waitIdle returns after a time without use of limit (0: never), or after a signal of at most ReplaceIdle.
func (u *Use) waitIdle(ctx context.Context, limit func(used bool) time.Duration, replaced <-chan os.Signal) {
	for {
		wait := time.Minute
		unused, used := u.Unused()
		idle := limit(used)
		if u.most > 0 && (idle == 0 || idle > u.most) {
			idle = u.most
		}
		if idle > 0 {
			if wait = idle - unused; wait <= 0 {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-replaced:
			u.most = ReplaceIdle
		case <-time.After(min(wait, time.Minute)):
		}
	}
}
