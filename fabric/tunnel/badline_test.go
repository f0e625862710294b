package tunnel

import (
	"bytes"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"rivulet/fabric/tunnel/paths"
	"rivulet/test/harness/await"
	"rivulet/test/harness/badline"
	"rivulet/test/harness/testns"
)

// far is a line to the other side of the world, by radio.
var far = badline.Quality{Delay: 50 * time.Millisecond, Jitter: 15 * time.Millisecond, Loss: 0.05}

// line lays a bad cable between the nodes.
func (w *world) line(name, addrA, addrB string, q badline.Quality) *badline.Line {
	t := w.a.node.t
	t.Helper()
	l := badline.New(t, badline.End{In: w.a.node.in, Name: name}, badline.End{In: w.b.node.in, Name: name}, q)
	w.a.node.must(func() error { return testns.Give(name, addrA) })
	w.b.node.must(func() error { return testns.Give(name, addrB) })
	return l
}

// newFarWorld is newWorld with a bad cable in place of the good one.
func newFarWorld(t *testing.T, q badline.Quality) (*world, *badline.Line) {
	t.Helper()
	w := newWorld(t)
	w.a.node.must(func() error { return removeLink("eth0") })
	return w, w.line("eth0", "192.168.77.1/24", "192.168.77.2/24", q)
}

// used is the path in use from a to b, and whether there is one.
func (w *world) used(t *testing.T) (paths.PathStatus, bool) {
	t.Helper()
	st, err := w.a.Status(t.Context())
	if err != nil || len(st.Peers) != 1 || len(st.Peers[0].Paths) == 0 || !st.Peers[0].Paths[0].Used {
		return paths.PathStatus{}, false
	}
	return st.Peers[0].Paths[0], true
}

// badLimit is generous: TCP waits seconds for what is lost.
const badLimit = 90 * time.Second

// A round trip of 100 ms that varies, and one frame of twenty lost each way: handshakes
// and TCP come through, the round trip is known, and the MTU is not taken for smaller.
func TestBadLine(t *testing.T) {
	t.Parallel()
	w, line := newFarWorld(t, far)
	for _, d := range []*board{w.a, w.b} {
		d.want.Peers[0].Address = map[bool]netip.Addr{true: netip.MustParseAddr("10.200.255.254"), false: netip.MustParseAddr("10.201.255.254")}[d == w.a]
	}
	w.apply(t)
	await.True(t, badLimit, "a path with a round trip of 100 ms", func() bool {
		p, ok := w.used(t)
		return ok && p.Alive && p.RTT > 60*time.Millisecond && p.RTT < 400*time.Millisecond
	})
	back := w.talkFar(t)
	least := testMTU
	for range 6 { // 200 KB each: retransmissions, and large packets that the measuring follows
		back(t, 200<<10)
		for _, d := range []*board{w.a, w.b} {
			st, err := d.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			least = min(least, st.Peers[0].MTU)
		}
	}
	if least < testMTU {
		t.Errorf("the MTU of the path was %d for a while: losses were taken for a narrow path", least)
	}
	if line.Lost.Load() == 0 {
		t.Error("the line has lost nothing")
	}
	t.Logf("%d frames carried, %d lost", line.Carried.Load(), line.Lost.Load())
}

// Of two ways to a peer the one with the shorter round trip is used, and another one
// when that changes; a connection in the tunnel goes on.
func TestPathByRoundTrip(t *testing.T) {
	t.Parallel()
	w, slow := newFarWorld(t, badline.Quality{Delay: 60 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.02})
	quick := w.line("eth1", "192.168.78.1/24", "192.168.78.2/24", badline.Quality{Delay: 5 * time.Millisecond, Jitter: time.Millisecond})
	w.a.want.Candidates = []netip.AddrPort{netip.MustParseAddrPort("192.168.77.1:7442"), netip.MustParseAddrPort("192.168.78.1:7442")}
	w.b.want.Candidates = []netip.AddrPort{netip.MustParseAddrPort("192.168.77.2:7442"), netip.MustParseAddrPort("192.168.78.2:7442")}
	w.apply(t)
	by := func(network string) func() bool {
		return func() bool {
			p, ok := w.used(t)
			return ok && p.Alive && netip.MustParsePrefix(network).Contains(p.Addr.Addr())
		}
	}
	await.True(t, badLimit, "the quick way in use", by("192.168.78.0/24"))
	back := w.talkFar(t)
	back(t, 64<<10)
	quick.Set(badline.Quality{Delay: 150 * time.Millisecond})
	slow.Set(badline.Quality{Delay: 10 * time.Millisecond})
	await.True(t, badLimit, "the other way in use, which is quicker now", by("192.168.77.0/24"))
	back(t, 64<<10)
	slow.Set(badline.Quality{Loss: 1})
	await.True(t, badLimit, "the way that is left in use", by("192.168.78.0/24"))
	back(t, 64<<10)
}

// talkFar opens a connection from pod to pod; what is sent on it comes back.
func (w *world) talkFar(t *testing.T) func(t *testing.T, size int) {
	t.Helper()
	c := w.echo(t, 8080, badLimit)
	return func(t *testing.T, size int) {
		t.Helper()
		sent, got := make([]byte, size), make([]byte, size)
		for i := range sent {
			sent[i] = byte(i * i >> 3)
		}
		c.SetDeadline(time.Now().Add(badLimit))
		go c.Write(sent)
		if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(sent, got) {
			t.Fatalf("%d of %d bytes came back, or they differ: %v", n, size, err)
		}
	}
}

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}
