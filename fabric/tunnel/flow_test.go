package tunnel

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// However enter, leave and wait are mixed, and however much is lost inside, who
// waits gets on, and never more than the bound and what was read at once is inside.
func TestFlowIsBoundedAndNeverStuck(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFlow()
		f.stale = time.Microsecond
		batches := rapid.SliceOfN(rapid.IntRange(0, 128), 1, 50).Draw(t, "batches")
		lost := rapid.SliceOfN(rapid.IntRange(0, 128), len(batches), len(batches)).Draw(t, "lost")
		inside := make(chan int, len(batches))
		var writer sync.WaitGroup
		writer.Go(func() {
			for n := range inside {
				f.leave(n)
			}
		})
		for i, n := range batches {
			f.wait()
			f.enter(n)
			if v := f.inside.Load(); v > f.bound+128 {
				t.Fatalf("%d packets inside", v)
			}
			inside <- max(0, n-lost[i])
		}
		close(inside)
		writer.Wait()
		f.leave(1000) // keepalives and handshakes
		if v := f.inside.Load(); v < 0 || v > f.bound+128 {
			t.Fatalf("%d packets inside", v)
		}
	})
}

func message(kind byte, number uint32, size int) []byte {
	b := make([]byte, size)
	b[0] = kind
	binary.LittleEndian.PutUint32(b[4:], number)
	return b
}

// What does not belong to a session of ours never counts: nobody can fill the flow
// from outside.
func TestStrangersDoNotFillTheFlow(t *testing.T) {
	var s sessions
	count := func(b []byte) int { return s.count([][]byte{b}, []int{len(b)}) }
	if count(message(transport, 7, 100)) != 0 {
		t.Error("a packet counts before any handshake")
	}
	s.sent([][]byte{message(initiation, 7, 148), message(transport, 8, 100), message(response, 9, 92)})
	for _, c := range []struct {
		what string
		b    []byte
		want int
	}{
		{"a packet of our initiation's session", message(transport, 7, 100), 1},
		{"a packet of our response's session", message(transport, 9, 100), 1},
		{"a packet of no session", message(transport, 8, 100), 0},
		{"a keepalive", message(transport, 7, emptyTransport), 0},
		{"a handshake", message(initiation, 7, 148), 0},
	} {
		if got := count(c.b); got != c.want {
			t.Errorf("%s counts %d, want %d", c.what, got, c.want)
		}
	}
}
