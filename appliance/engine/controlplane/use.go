package controlplane

import (
	"context"
	"errors"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Use counts the use of the control plane: requests except those of its own parts, and those that last as long as they do.
// Its methods may be called at any time.
type Use struct {
	now  func() time.Time
	mu   sync.Mutex
	open int
	used bool          // since reset
	last time.Time     // end of the last one
	most time.Duration // limit of waitIdle, which alone uses it and forced; 0: none
	// forced: it is to sleep, in use or not.
	forced bool
}

// ErrAsleep is the answer to a watch of a virtual cluster that sleeps.
var ErrAsleep = errors.New("it is asleep, and a watch does not wake it; any other request does")

// Watches reports whether a request only waits for news: a watch, or a log that is followed.
func Watches(r *http.Request) bool {
	q := r.URL.Query()
	return r.Method == http.MethodGet && (yes(q.Get("watch")) || yes(q.Get("follow")) || oldWatch.MatchString(r.URL.Path))
}

// oldWatch matches the paths of watches before they were a parameter.
var oldWatch = regexp.MustCompile(`^/(api/[^/]+|apis/[^/]+/[^/]+)/watch/`)

// yes is what Kubernetes takes for true in a query.
func yes(s string) bool { return s != "" && s != "0" && !strings.EqualFold(s, "false") }

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

// waitIdle returns after a time without use of limit (0: never); after ReplaceSignal of at most ReplaceIdle, and after
// SleepSignal at once.
func (u *Use) waitIdle(ctx context.Context, limit func(used bool) time.Duration, signals <-chan os.Signal) {
	for !u.forced {
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
		case s := <-signals:
			u.forced = u.forced || s == SleepSignal
			u.most = ReplaceIdle
		case <-time.After(min(wait, time.Minute)):
		}
	}
}
