package connlimit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/test/harness/await"
)

// pipe is a connection that only has addresses.
type pipe struct {
	net.Conn
	from   netip.Addr
	mu     sync.Mutex
	closed bool
}

func (p *pipe) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.from, 1)) }
func (p *pipe) Close() error         { p.mu.Lock(); defer p.mu.Unlock(); p.closed = true; return nil }
func (p *pipe) open() bool           { p.mu.Lock(); defer p.mu.Unlock(); return !p.closed }

// inTens gives ten addresses to each owner.
func inTens(a netip.Addr) string { return fmt.Sprint("owner ", a.As4()[3]/10) }

func from(n int) *pipe { return &pipe{from: netip.AddrFrom4([4]byte{192, 0, 2, byte(n)})} }

// However they come, become known and go, nobody has more than the limits say, a
// newcomer gets in, and what is counted is what is open.
func TestLimitsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := func(name string, most int) int { return rapid.IntRange(1, most).Draw(t, name) }
		d := newGroup(Side{Limits{Strangers: n("strangers", 12), PerSource: n("each", 6), PerOwner: n("owner", 8), Peers: n("peers", 12), PerPeer: n("peer", 6)}, inTens})
		var open []*conn
		for range n("steps", 60) {
			who := rapid.IntRange(0, max(len(open)-1, 0)).Draw(t, "who")
			switch step := rapid.IntRange(0, 3).Draw(t, "step"); {
			case len(open) > 0 && step == 0:
				open[who].Close()
				open[who].Close()
			case len(open) > 0 && step == 1:
				peer := inTens(open[who].source)
				if Known(open[who], peer) != open[who].Conn.(*pipe).open() {
					t.Fatal("one that is refused is open, or one that is not has ended")
				}
			default:
				c := d.admit(from(rapid.IntRange(1, 39).Draw(t, "from"))).(*conn)
				if !c.Conn.(*pipe).open() {
					t.Fatal("a newcomer was turned away")
				}
				open = append(open, c)
			}
			left := open[:0]
			count := map[string]int{}
			for _, c := range open {
				if !c.Conn.(*pipe).open() {
					continue
				}
				left = append(left, c)
				if c.pool == &d.strangers {
					count["strangers"]++
					count["source "+c.source.String()]++
					count["stranger "+c.party]++
				} else {
					count["peers"]++
					count["peer "+c.party]++
				}
			}
			open = left
			if count["strangers"] != len(d.strangers.conns) || count["peers"] != len(d.peers.conns) {
				t.Fatalf("%v are open, %d and %d are counted", count, len(d.strangers.conns), len(d.peers.conns))
			}
			for what, n := range count {
				var kind string
				fmt.Sscan(what, &kind)
				if most := map[string]int{"strangers": d.Strangers, "source": d.PerSource, "stranger": d.PerOwner, "peers": d.Peers, "peer": d.PerPeer}[kind]; n > most {
					t.Fatalf("%s has %d connections, %d may be", what, n, most)
				}
			}
		}
	})
}

// A peer with ten addresses, which all of its connections have proved to be, holds its
// share and no more; all others come and stay, also when the whole is full.
func TestOnePeerWithManyAddresses(t *testing.T) {
	d := newGroup(Side{Limits{Strangers: 64, PerSource: 16, PerOwner: 32, Peers: 100, PerPeer: 40}, inTens})
	held := func(peer string) int { return d.peers.by[peer] }
	attack := func(owner int, tries int) (let int) {
		for i := range tries {
			if c := d.admit(from(10*owner + i%10)); Known(c, fmt.Sprint("owner ", owner)) {
				let++
			}
		}
		return let
	}
	if let := attack(1, 4093); held("owner 1") != 40 || let < 40 {
		t.Errorf("one peer holds %d connections, want its share of 40", held("owner 1"))
	}
	attack(2, 500)
	honest := d.admit(from(35))
	if !Known(honest, "owner 3") {
		t.Fatal("another peer is kept out")
	}
	attack(4, 500) // now it is full
	attack(5, 500)
	if total := len(d.peers.conns); total != 100 {
		t.Fatalf("%d connections, want it full", total)
	}
	if !honest.(*conn).Conn.(*pipe).open() {
		t.Error("the peer with one connection lost it to those with many")
	}
	for i := range 8 {
		if !Known(d.admit(from(35)), "owner 3") {
			t.Errorf("connection %d of one who has few is refused while others have many", i)
		}
	}
	// The same without a word: strangers, whose addresses tell whose they are.
	for i := range 1000 {
		d.admit(from(10 + i%10))
	}
	if n := d.strangers.by["owner 1"]; n > 32 {
		t.Errorf("%d connections of one owner's addresses that have said nothing", n)
	}
}

func TestSource(t *testing.T) {
	for a, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "2001:db8::1": "2001:db8::", "2001:db8::2": "2001:db8::", "fe80::1%eth0": "fe80::1%eth0",
	} {
		if got := Source(netip.MustParseAddr(a)); got.String() != want {
			t.Errorf("%s counts as %s, want %s", a, got, want)
		}
	}
}

// On a real socket: the oldest of a full source goes, a lifetime ends, and so does the
// patience with strangers.
func TestListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := Listen(l, func(netip.Addr) bool { return false }, Side{Limits: Limits{Strangers: 9, PerSource: 2, PerOwner: 9, Peers: 9, PerPeer: 9, Deadline: time.Hour, Lifetime: time.Hour}}, Side{})
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
	mine := <-got
	if !ended(first) {
		t.Error("the oldest is still there")
	}
	for _, conn := range []net.Conn{second, third} {
		conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("one that was within the limits ended: %v", err)
		}
	}
	if !Known(wrapped{mine}, "p") || !Known(mine, "p") {
		t.Error("it is not known through what is around it")
	}
	set := func(deadline, lifetime time.Duration) {
		c.outer.mu.Lock()
		defer c.outer.mu.Unlock()
		c.outer.Deadline, c.outer.Lifetime = deadline, lifetime
	}
	set(time.Hour, 20*time.Millisecond)
	if short := dial(); !ended(short) {
		t.Error("a connection outlived its time")
	}
	<-got
	set(100*time.Millisecond, 0)
	stranger, peer := dial(), dial()
	<-got
	if !Known(<-got, "p") {
		t.Error("it is refused")
	}
	if !ended(stranger) {
		t.Error("a stranger stays")
	}
	peer.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := peer.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a peer's connection ended with the patience for strangers: %v", err)
	}
}

type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

// Connections of users last beyond the lifetime of all others, and are bounded apart.
func TestLasting(t *testing.T) {
	d := newGroup(Side{Limits: Limits{Strangers: 9, PerSource: 9, PerOwner: 9, Peers: 9, PerPeer: 9, Lifetime: time.Millisecond, Users: 3, PerUser: 2}})
	var anna []*conn
	for range 2 {
		c := d.admit(from(1)).(*conn)
		for !Lasting(c, "anna") { // its time may be over already on a busy machine
			c = d.admit(from(1)).(*conn)
		}
		anna = append(anna, c)
	}
	other := d.admit(from(2)).(*conn)
	await.True(t, time.Minute, "a stranger's connection ends with its lifetime", func() bool { return !other.Conn.(*pipe).open() })
	for _, c := range anna {
		if !c.Conn.(*pipe).open() {
			t.Error("a user's connection ended with the lifetime of strangers")
		}
	}
	d.Lifetime = 0
	if Lasting(d.admit(from(1)), "anna") {
		t.Error("one user has more than a user's share")
	}
	if !Lasting(d.admit(from(3)), "ben") || Lasting(d.admit(from(4)), "ben") && len(d.users.conns) > 3 {
		t.Errorf("%d connections of users", len(d.users.conns))
	}
	if len(d.peers.conns) != 0 {
		t.Error("users count as peers")
	}
}
