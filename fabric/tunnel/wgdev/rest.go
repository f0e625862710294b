package wgdev

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rest returns memory to the system while there is little traffic. WireGuard reads into buffers of 64 KiB, 128 of them
// for each socket and for the TUN, and exchanges them for those of packets: in time all of them have been written to,
// which is 32 MB for good, and as much again as uncollected garbage. It looks like memory per peer, since each peer
// causes some packets.
//
//	run ── generation ──▶ readers, before their next read: the buffers' pages
//	  └── garbage: the unused pages of the heap
//
// The next read then uses new pages of zeros, which is cheap for few packets.
type rest struct {
	generation atomic.Uint64
	passed     func() uint64 // packets since start, in both directions
}

const (
	restEvery = 30 * time.Second
	// restBelow is the rate of little traffic, packets per second: fifty idle peers make 200.
	restBelow = 2000
)

// run checks the rate until ctx ends.
func (r *rest) run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := r.passed()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := r.passed()
		if now-last < uint64(restBelow*every/time.Second) {
			r.generation.Add(1)
			runtime.GC() // a pool keeps its contents through one
			debug.FreeOSMemory()
		}
		last = now
	}
}

// reader is one goroutine that reads into the same buffers repeatedly. Without a rest it keeps them.
type reader struct {
	of   *rest
	last uint64
}

// before is called before a read. The contents of bufs are not needed any more.
func (r *reader) before(bufs [][]byte) {
	if r.of == nil {
		return
	}
	if g := r.of.generation.Load(); g != r.last {
		r.last = g
		for _, b := range bufs {
			release(b)
		}
	}
}

// wholePages is the size, bytes, from which Go gives an object pages of its own, and goPage the size of those: the
// space after its end on the last one is unused.
const wholePages, goPage = 32 << 10, 8 << 10

// release releases the pages of a buffer that begins with one; its contents are zeros then.
func release(b []byte) {
	page := unix.Getpagesize()
	if len(b) <= wholePages || page > goPage || uintptr(unsafe.Pointer(&b[0]))%goPage != 0 {
		return
	}
	whole := (len(b) + page - 1) / page * page // beyond the object's end, so not a slice of it
	// A failure costs memory only.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(unsafe.Pointer(&b[0])), uintptr(whole), unix.MADV_DONTNEED)
}
