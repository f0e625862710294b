package memory

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// A supervisor at rest has little to collect, so its limit of garbage is low. When many pods start at once, the same
// limit causes several collections per second, a third of its CPU time. So while collections are that frequent the
// limit is higher, within the memory limit, and it is lowered again afterwards.
const (
	busyGC = 200                    // percent, while busy
	often  = 700 * time.Millisecond // a shorter interval between two collections is busy
	quiet  = 3 * time.Second        // this long without one is not busy
)

// Breathe applies a share to this process, and a higher GC percentage while the process is busy. It costs nothing at
// rest, because the collections themselves trigger it. Settings in the environment take precedence.
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
	busy *time.Timer // ends the busy state; nil at rest
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
	runtime.GC() // else present garbage stays until as much is added
}

// afterEachCollection calls f on the goroutine of finalizers, so f must not block.
func afterEachCollection(f func()) {
	// Larger than the tiny allocator's objects, which would keep it alive with others.
	type sentinel struct{ _ [4]uintptr }
	var again func(*sentinel)
	again = func(s *sentinel) {
		f()
		runtime.SetFinalizer(s, again)
	}
	runtime.SetFinalizer(&sentinel{}, again)
}
