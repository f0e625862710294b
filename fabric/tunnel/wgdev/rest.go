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

// rest gives memory back to the system while little passes. WireGuard reads into
// buffers of 64 KiB, 128 of them for each socket and for the TUN, and packets that
// pass change them for others: sooner or later all of them have been written to,
// which is 32 MB that stay for good, and as much again that the garbage collector
// has not come to yet. It looks like memory that each peer takes, since each has
// the tunnel send and hear something now and then.
//
//	run ── generation ──▶ readers, before their next read: the buffers' pages
//	  └── garbage: the pages that the heap does not use
//
// What is read into next is all zeros, and new pages: cheap for few packets.
type rest struct {
	generation atomic.Uint64
	passed     func() uint64 // packets since start, in both directions
}

const (
	restEvery = 30 * time.Second
	// restBelow is how many packets a second are little: fifty idle peers make 200.
	restBelow = 2000
)

// run looks at what passes until ctx ends.
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
			runtime.GC() // a pool keeps what it has through one
			debug.FreeOSMemory()
		}
		last = now
	}
}

// reader is one who reads into the same buffers again and again; it is used by one
// goroutine. Without a rest it keeps what it has.
type reader struct {
	of   *rest
	last uint64
}

// before is called before a read. Nothing that is in bufs is needed any more.
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

// wholePages is from which size on, bytes, Go gives an object pages of its own, and how
// large those are: what lies behind its end on the last one belongs to nobody.
const wholePages, goPage = 32 << 10, 8 << 10

// release lets go of the pages of a buffer that begins with one; what it holds is zeros then.
func release(b []byte) {
	page := unix.Getpagesize()
	if len(b) <= wholePages || page > goPage || uintptr(unsafe.Pointer(&b[0]))%goPage != 0 {
		return
	}
	whole := (len(b) + page - 1) / page * page // beyond the object's end, so no slice of it
	// Memory and nothing else is lost if it fails.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(unsafe.Pointer(&b[0])), uintptr(whole), unix.MADV_DONTNEED)
}
