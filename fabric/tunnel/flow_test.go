package tunnel

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/tun"
	"pgregory.net/rapid"

	"rivulet/fabric/translate"
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

// stillTUN hands out the same packets again and again, and takes any.
type stillTUN struct {
	tun.Device
	packets [][]byte
}

func (s *stillTUN) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	for i, p := range s.packets {
		sizes[i] = copy(bufs[i][offset:], p)
	}
	return len(s.packets), nil
}

func (*stillTUN) Write(bufs [][]byte, _ int) (int, error) { return len(bufs), nil }

// A batch of packets costs no allocation on its way through our part, either way:
// translation, the bound and the count.
func TestNoAllocationsPerPacket(t *testing.T) {
	table, err := translate.Compile([]translate.Rule{{Local: podCIDR, As: aSeenByB, Remote: bSeenByA}}, testMTU)
	if err != nil {
		t.Fatal(err)
	}
	const offset, batch = 16, 32
	still := &stillTUN{}
	in, out := newFlow(), newFlow()
	d := &translated{Device: still, translator: new(translate.Translator), dropped: new(atomic.Uint64), in: in, out: out, marks: &marks{}, large: new(atomic.Uint64)}
	d.translator.Set(table)
	var bufs, back, wire [][]byte
	arrived := append(make([]byte, offset), datagram("10.200.0.7", "10.201.0.5")...)
	for range batch {
		still.packets = append(still.packets, datagram("10.42.0.5", "10.200.0.7"))
		bufs = append(bufs, make([]byte, 64))
		back = append(back, make([]byte, len(arrived)))
		wire = append(wire, message(transport, 7, 100))
	}
	sizes := make([]int, batch)
	var s sessions
	s.sent([][]byte{message(initiation, 7, 148)})
	wireSizes := slices.Repeat([]int{100}, batch)
	if n := testing.AllocsPerRun(100, func() {
		if n, err := d.Read(bufs, sizes, offset); n != batch || err != nil || sizes[batch-1] == 0 {
			t.Fatalf("read %d, %v", n, err)
		}
		s.sent(wire)
		out.leave(batch)
	}); n != 0 {
		t.Errorf("%v allocations per batch that leaves, want 0", n)
	}
	given := make([][]byte, batch)
	if n := testing.AllocsPerRun(100, func() {
		in.enter(s.count(wire, wireSizes))
		for i := range back {
			copy(back[i], arrived)
			given[i] = back[i]
		}
		if n, err := d.Write(given, offset); n != batch || err != nil {
			t.Fatalf("wrote %d, %v", n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per batch that arrives, want 0", n)
	}
	if in.inside.Load() != 0 || out.inside.Load() != 0 {
		t.Errorf("%d and %d packets are left inside", in.inside.Load(), out.inside.Load())
	}
}
