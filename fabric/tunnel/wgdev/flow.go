package wgdev

import (
	"runtime/debug"
	"sync/atomic"
	"time"

	"rivulet/fabric/changes"
)

// flow bounds how many packets of one direction are between the TUN and the UDP sockets. WireGuard reads as fast as it
// can and stores unencrypted packets in 64 KiB each: several TCP windows, which is hundreds of megabytes, or, under a
// memory limit, permanent garbage collection. A few batches keep every worker busy; more do not fit the CPU's caches.
// Unread packets wait in the kernel, which stores them tighter.
//
// The count is of packets that entered and have not left. Some never leave (invalid ones, and those for a peer that
// does not answer): if no packet at all has left for a while, the counted ones are written off.
type flow struct {
	inside atomic.Int64
	left   atomic.Uint64 // since start
	large  atomic.Uint64 // as many more packets of a usual size would be what the large ones of left carry
	bound  int64
	stale  time.Duration
	free   chan struct{}
	letGo  func() // may be nil
}

const (
	// flowBound is two batches: one is worked on while the next is read.
	flowBound = 256
	// flowSmall is for a process with a memory limit of at most smallLimit.
	flowSmall  = 128
	smallLimit = 96 << 20
	// flowStale is longer than a small board needs for a batch.
	flowStale = 5 * time.Millisecond
)

func newFlow() *flow {
	f := &flow{bound: flowBound, stale: flowStale, free: make(chan struct{}, 1)}
	if debug.SetMemoryLimit(-1) <= smallLimit {
		f.bound = flowSmall
	}
	return f
}

// wait returns when there is room for one more batch.
func (f *flow) wait() {
	for f.inside.Load() >= f.bound {
		left := f.left.Load()
		t := time.NewTimer(f.stale)
		select {
		case <-f.free:
			t.Stop()
		case <-t.C:
			if f.left.Load() == left {
				if f.letGo != nil {
					f.letGo()
				}
				f.inside.Store(0)
			}
		}
	}
	if f.inside.Load() < f.bound { // another reader may be waiting
		f.poke()
	}
}

func (f *flow) enter(n int) {
	if n > 0 {
		f.inside.Add(int64(n))
	}
}

// leave may be called for more than have entered: WireGuard's own messages.
func (f *flow) leave(n int) {
	f.left.Add(uint64(n))
	v := f.inside.Add(-int64(n))
	if v < 0 {
		f.inside.CompareAndSwap(v, 0)
	}
	if v < f.bound {
		f.poke()
	}
}

// usualSize is what a usual link fits, bytes.
const usualSize = 1500

// weigh counts packets that leave, in place of which there would be more of a usual size.
func (f *flow) weigh(bufs [][]byte) {
	more := 0
	for _, b := range bufs {
		more += len(b) / usualSize
	}
	if more > 0 {
		f.large.Add(uint64(more))
	}
}

// passed is how many packets have left, large ones counted as the usual ones that they are.
func (f *flow) passed() uint64 { return f.left.Load() + f.large.Load() }

func (f *flow) poke() {
	changes.Poke(f.free)
}
