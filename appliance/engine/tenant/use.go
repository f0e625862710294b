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
	used bool          // since reset
	last time.Time     // when the last one ended
	most time.Duration // bounds what waitIdle waits for, which alone has it; 0 does not
}

// NewUse counts from now on.
func NewUse(now func() time.Time) *Use { return &Use{now: now, last: now()} }

// Begin counts a request until the function that it returns is called.
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

// Unused is for how long nobody has used it, 0 while somebody does, and whether anybody has since reset.
func (u *Use) Unused() (unused time.Duration, used bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open > 0 {
		return 0, true
	}
	return max(u.now().Sub(u.last), 0), u.used
}

// waitIdle returns when nobody has used it for so long as limit says, 0 never does; after a signal for ReplaceIdle at most.
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
