package wgdev

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"

	"rivulet/test/harness/await"
)

// pagesOf counts the pages of a buffer that take memory.
func pagesOf(t *testing.T, b []byte) (n int) {
	t.Helper()
	page := unix.Getpagesize()
	there := make([]byte, len(b)/page)
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(there)*page), uintptr(unsafe.Pointer(&there[0]))); e != 0 {
		t.Skipf("needs mincore: %v", e)
	}
	for _, p := range there {
		n += int(p & 1)
	}
	return n
}

// While little passes the buffers that packets are read into take no memory, and what
// lies beside them stays.
func TestBuffersAreGivenBack(t *testing.T) {
	var passed atomic.Uint64
	r := &rest{passed: passed.Load}
	readers := []*reader{{of: r}, {of: r}}
	var bufs, others [][]byte
	for range 8 { // as WireGuard makes them
		bufs = append(bufs, new([device.MaxMessageSize]byte)[:])
		others = append(others, new([device.MaxMessageSize]byte)[:])
	}
	fill := func() {
		for i := range bufs {
			copy(bufs[i], bytes.Repeat([]byte{7}, len(bufs[i])))
			copy(others[i], bytes.Repeat([]byte{8}, len(others[i])))
		}
	}
	fill()
	for _, reader := range readers {
		reader.before(bufs)
	}
	if bufs[0][0] != 7 {
		t.Error("given back though nobody has said that little passes")
	}

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx, time.Millisecond) }()
	await.True(t, time.Minute, "a pause that is seen", func() bool { return r.generation.Load() > 0 })
	cancel()
	<-done
	readers[0].before(bufs)
	for i, b := range bufs {
		if n := pagesOf(t, b); n > 0 {
			t.Errorf("buffer %d: %d pages are still there", i, n)
		}
		if bytes.Count(others[i], []byte{8}) != len(others[i]) {
			t.Fatalf("what lies beside buffer %d is another", i)
		}
	}
	fill()
	readers[0].before(bufs)
	if bufs[0][0] != 7 {
		t.Error("given back twice for one pause")
	}
	readers[1].before(bufs)
	if bufs[0][0] != 0 {
		t.Error("each reader has buffers of its own")
	}
}

// A tunnel that is busy keeps what it works with.
func TestBusyTunnelKeepsItsBuffers(t *testing.T) {
	var passed, looks atomic.Uint64
	r := &rest{passed: func() uint64 { looks.Add(1); return passed.Add(1 << 20) }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx, time.Millisecond) }()
	await.True(t, time.Minute, "looks", func() bool { return looks.Load() > 5 })
	cancel()
	<-done
	if r.generation.Load() != 0 {
		t.Error("a busy tunnel gave its buffers back")
	}
}
