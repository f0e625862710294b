package wgdev

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/tun"
	"pgregory.net/rapid"

	"rivulet/fabric/translate"
)

var (
	podCIDR  = netip.MustParsePrefix("10.42.0.0/16")
	bSeenByA = netip.MustParsePrefix("10.200.0.0/16")
	aSeenByB = netip.MustParsePrefix("10.201.0.0/16")
)

const testMTU = 1420

func datagram(src, dst string) []byte {
	p := make([]byte, 28)
	p[0], p[3], p[8], p[9], p[25] = 0x45, 28, 64, 17, 8
	s, d := netip.MustParseAddr(src).As4(), netip.MustParseAddr(dst).As4()
	copy(p[12:], s[:])
	copy(p[16:], d[:])
	return p
}

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
	table, err := translate.Compile([]translate.Rule{{LocalCIDR: podCIDR, LocalMappedCIDR: aSeenByB, PeerMappedCIDR: bSeenByA}}, testMTU)
	if err != nil {
		t.Fatal(err)
	}
	const offset, batch = 16, 32
	still := &stillTUN{}
	in, out := newFlow(), newFlow()
	d := &filtered{Device: still, Options: Options{Translator: new(translate.Translator), Counts: &Counts{}}, in: in, out: out, marks: &marks{}, staged: &staged{}}
	d.Translator.Set(table)
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

// What never leaves is let go of once the flow is full of it and nothing moves, and
// not before.
func TestWhatNeverLeavesIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlow()
		let := 0
		f.letGo = func() { let++ }
		for range 100 {
			f.wait()
			f.enter(1)
			f.leave(1)
		}
		if let != 0 {
			t.Errorf("let go %d times while all left", let)
		}
		for range 10 * f.bound {
			f.wait()
			f.enter(1)
		}
		if let != 9 {
			t.Errorf("let go %d times, want once for each %d packets", let, f.bound)
		}
	})
}

func TestWhoIsGone(t *testing.T) {
	b, c, d := Key{1}, Key{2}, Key{3}
	now := time.Unix(10000, 0)
	worker := []netip.Prefix{netip.MustParsePrefix("10.42.3.0/24"), netip.MustParsePrefix("100.127.3.4/32")} // its pods and itself
	peers := []Peer{{Key: b, CIDR: bSeenByA}, {Key: c, CIDR: aSeenByB}, {d, netip.MustParsePrefix("10.202.0.0/16"), worker}}
	g := goneNow(peers, map[Key]Session{b: {LastHandshake: now.Add(-time.Minute)}, c: {LastHandshake: now.Add(-time.Hour)}}, now)
	g.tried.Store(time.Now().Add(time.Hour).UnixNano())
	for dst, want := range map[string]bool{"10.200.0.7": false, "10.201.0.7": true, "10.202.0.7": true, "10.203.0.7": false,
		"10.42.3.9": true, "100.127.3.4": true, "10.42.4.9": false, "100.127.3.5": false} {
		if got := g.refuses(datagram("10.42.0.5", dst)); got != want {
			t.Errorf("a packet for %s is refused: %v, want %v", dst, got, want)
		}
	}
	g.tried.Store(0)
	if g.refuses(datagram("10.42.0.5", "10.202.0.7")) || !g.refuses(datagram("10.42.0.5", "10.202.0.7")) {
		t.Error("want one packet that makes WireGuard try, and no second at once")
	}
	if goneNow(nil, nil, now) != nil {
		t.Error("nobody is there to be gone")
	}
}

// A packet of 64 KiB is as much traffic as the packets that it would be on a usual link.
func TestLargePacketsCountAsMany(t *testing.T) {
	f := newFlow()
	bufs := [][]byte{make([]byte, 64<<10), make([]byte, 100), make([]byte, 1400)}
	f.weigh(bufs)
	f.leave(len(bufs))
	if got := f.passed(); got != 3+43 {
		t.Errorf("%d packets", got)
	}
}
