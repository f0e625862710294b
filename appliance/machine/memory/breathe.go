package memory

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// A supervisor at rest has little to collect, and is told to keep little garbage. When
// many pods come at once the same rule has it collect several times a second, which was a
// third of its CPU time. So while collections follow each other that fast it may keep
// more, within its limit, and gives it back when it is quiet.
const (
	busyGC = 200                    // percent, while busy
	often  = 700 * time.Millisecond // less between two collections is busy
	quiet  = 3 * time.Second        // so long without one is not
)

// Breathe applies a share for this process, and more garbage than it says while the
// process is busy. It costs nothing at rest: the collections themselves are what is
// watched. What the environment has decided stays.
func (s Share) Breathe() {
	s.Apply()
	if has(os.Environ(), "GOGC") || s.GC >= busyGC {
		return
	}
	b := &breath{rest: s.GC}
	afterEachCollection(b.collected)
}

type breath struct {
	rest int

	mu   sync.Mutex
	last time.Time
	busy *time.Timer // ends it; nil at rest
}

// collected is called after each collection.
func (b *breath) collected() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	fast := now.Sub(b.last) < often
	b.last = now
	switch {
	case b.busy != nil:
		b.busy.Reset(quiet)
	case fast:
		b.busy = time.AfterFunc(quiet, b.exhale)
		debug.SetGCPercent(busyGC)
	}
}

func (b *breath) exhale() {
	b.mu.Lock()
	b.busy = nil
	debug.SetGCPercent(b.rest)
	b.mu.Unlock()
	runtime.GC() // else what lies around stays until as much has come again
}

// afterEachCollection calls f, on the goroutine of finalizers, so f may not wait.
func afterEachCollection(f func()) {
	// More than the tiny allocator takes, which would keep it alive with others.
	type sentinel struct{ _ [4]uintptr }
	var again func(*sentinel)
	again = func(s *sentinel) {
		f()
		runtime.SetFinalizer(s, again)
	}
	runtime.SetFinalizer(&sentinel{}, again)
}
