package crowd

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// pipe is a connection that only has addresses.
type pipe struct {
	net.Conn
	from   netip.Addr
	closed bool
}

func (p *pipe) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.from, 1)) }
func (p *pipe) Close() error         { p.closed = true; return nil }

// However they come and go, nobody has more than the limits say, a newcomer gets in
// where that is the rule, and who has least loses nothing to who has most.
func TestLimitsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{Total: rapid.IntRange(1, 12).Draw(t, "total"), PerSource: rapid.IntRange(1, 6).Draw(t, "each"), Replace: rapid.Bool().Draw(t, "replace")}
		d := newCrowd(limits)
		var open []*conn
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(open) > 0 && rapid.Bool().Draw(t, "leaves") {
				i := rapid.IntRange(0, len(open)-1).Draw(t, "who")
				open[i].Close()
				open[i].Close()
			} else {
				from := netip.AddrFrom4([4]byte{192, 0, 2, byte(rapid.IntRange(1, 5).Draw(t, "from"))})
				c, ok := d.admit(&pipe{from: from})
				if limits.Replace && !ok {
					t.Fatal("a newcomer was turned away")
				}
				if ok {
					open = append(open, c.(*conn))
				}
			}
			n := 0
			by := map[netip.Addr]int{}
			left := open[:0]
			for _, c := range open {
				if !c.Conn.(*pipe).closed {
					left = append(left, c)
					n++
					by[c.source]++
				}
			}
			open = left
			if n > limits.Total || n != d.n || len(by) != len(d.by) {
				t.Fatalf("%d connections of %d sources are open, %d of %d are counted, %d may be", n, len(by), d.n, len(d.by), limits.Total)
			}
			for _, k := range by {
				if k > limits.PerSource {
					t.Fatalf("%d connections of one source", k)
				}
			}
		}
	})
}

func TestSource(t *testing.T) {
	for a, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "2001:db8::1": "2001:db8::", "2001:db8::2": "2001:db8::", "fe80::1%eth0": "fe80::1%eth0",
	} {
		if got := source(netip.MustParseAddr(a)); got.String() != want {
			t.Errorf("%s counts as %s, want %s", a, got, want)
		}
	}
}

// On a real socket: the oldest of a full source goes, and a lifetime ends.
func TestListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := Listen(l, func(netip.Addr) bool { return false }, Limits{Total: 9, PerSource: 2, Replace: true, Lifetime: time.Hour}, Limits{Total: 9, PerSource: 1})
	defer c.Close()
	got := make(chan net.Conn, 16)
	go func() {
		for {
			conn, err := c.Accept()
			if err != nil {
				return
			}
			got <- conn
		}
	}()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	ended := func(conn net.Conn) bool {
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, err := conn.Read(make([]byte, 1))
		return !errors.Is(err, os.ErrDeadlineExceeded)
	}
	first, second := dial(), dial()
	<-got
	<-got
	third := dial()
	<-got
	if !ended(first) {
		t.Error("the oldest is still there")
	}
	for _, conn := range []net.Conn{second, third} {
		conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("one that was within the limits ended: %v", err)
		}
	}
	c.outer.mu.Lock()
	c.outer.limits.Lifetime = 20 * time.Millisecond
	c.outer.mu.Unlock()
	if short := dial(); !ended(short) {
		t.Error("a connection outlived its time")
	}
}
