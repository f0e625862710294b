package memory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// A process that makes much garbage may keep more of it, and less again when it is quiet.
func TestBreathe(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	b := &breath{rest: 30}
	debug.SetGCPercent(30)
	afterEachCollection(b.collected)
	until := func(what string, percent uint64, meanwhile func()) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); gcPercent() != percent; meanwhile() {
			if time.Now().After(deadline) {
				t.Fatalf("%s: it is at %d %%, want %d", what, gcPercent(), percent)
			}
		}
	}
	until("busy", busyGC, func() { garbage = make([]byte, 1<<20) })
	until("quiet", 30, func() { time.Sleep(20 * time.Millisecond) })
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy != nil {
		t.Error("quiet, and thinks that it is busy")
	}
	runtime.KeepAlive(garbage)
}

var garbage []byte

func gcPercent() uint64 {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
