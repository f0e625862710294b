package paths

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// closing is a connection that can only be closed.
type closing struct {
	net.Conn
	closed atomic.Bool
}

func (c *closing) Close() error { c.closed.Store(true); return nil }

// However streams come and go: a new one gets in, nobody has more places than there are for it, one ends only for a
// newcomer of the same source or of all places, never one of a source with fewer than others, and never a peer's own.
func TestUnprovedStreamsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g greets
		peers := []*peer{nil, {}, {}}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if len(g.all) > 0 && rapid.IntRange(0, 5).Draw(t, "ends") == 0 {
				g.leave(g.all[rapid.IntRange(0, len(g.all)-1).Draw(t, "which")])
				continue
			}
			before := append([]*greeting(nil), g.all...)
			count := func(from netip.Addr) (n int) {
				for _, o := range before {
					if o.peer == nil && o.from == from {
						n++
					}
				}
				return n
			}
			source := netip.AddrFrom4([4]byte{192, 0, 2, byte(rapid.IntRange(1, 90).Draw(t, "from"))})
			in := g.enter(&closing{}, source, peers[rapid.IntRange(0, 2).Draw(t, "peer")%3])
			if g.all[len(g.all)-1] != in {
				t.Fatal("a newcomer is out")
			}
			strangers, of := 0, map[any]int{}
			for _, o := range g.all {
				if o.peer == nil {
					strangers++
					of[o.from]++
				} else {
					of[o.peer]++
				}
			}
			if strangers > maxGreets {
				t.Fatalf("%d strangers", strangers)
			}
			for who, n := range of {
				if _, stranger := who.(netip.Addr); n > greetsPerSource || !stranger && n > greetsPerPeer {
					t.Fatalf("%v has %d", who, n)
				}
			}
			for _, o := range before {
				if !o.conn.(*closing).closed.Load() {
					continue
				}
				if o.peer != nil {
					t.Fatal("a peer's own place was taken")
				}
				for _, other := range before {
					if other.peer == nil && o.from != source && count(other.from) > count(o.from) {
						t.Fatal("one of a source with few has ended, and others have more")
					}
				}
				o.conn.(*closing).closed.Store(false)
			}
		}
	})
}

// Twenty addresses open stream after stream and prove nothing. A peer's stream is there at once, the first one as
// the next.
func TestStrangersKeepNoPeerOut(t *testing.T) {
	a, b, ends := linked(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a.m.Accept(t.Context(), c, nil)
		}
	}()
	open := func(n int) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 7, byte(1+n%20))}}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { c.Close() })
	}
	for n := range 200 {
		open(n)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; n < 3000; n++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				open(n)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	for try, conn := range []net.Conn{ends[1], nil} {
		if conn == nil {
			if conn, err = net.Dial("tcp", l.Addr().String()); err != nil {
				t.Fatal(err)
			}
		} else {
			a.m.Accept(t.Context(), ends[0], nil)
		}
		if err := b.m.begin(t.Context(), conn, a.public, StreamProtocol); err != nil {
			t.Fatalf("try %d: %v", try, err)
		}
		awaitTalk(a, b)
		if p := a.m.at(netip.MustParseAddr("127.0.0.1")); p == nil || p.public != b.public {
			t.Error("the peer's address is not known")
		}
	}
}
