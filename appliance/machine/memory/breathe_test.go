package memory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

// A process that makes much garbage may keep more of it, and less again when it is quiet.
func TestBreathe(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	b := &breath{rest: 30}
	debug.SetGCPercent(30)
	afterEachCollection(b.collected)
	for deadline := time.Now().Add(2 * time.Minute); gcPercent() != busyGC; garbage = make([]byte, 1<<20) {
		if time.Now().After(deadline) {
			t.Fatalf("busy: it is at %d %%, want %d", gcPercent(), busyGC)
		}
	}
	await.True(t, 2*time.Minute, "quiet, it is at 30 % and not busy", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return gcPercent() == 30 && b.busy == nil
	})
	runtime.KeepAlive(garbage)
}

var garbage []byte

func gcPercent() uint64 {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
