package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"

	"rivulet/fabric/tunnel/paths"
	"rivulet/fabric/wgkey"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// conversation is a TCP connection from pod a to pod b that was open before.
type conversation struct {
	t testing.TB
	c net.Conn
}

func converse(t *testing.T, w *world) *conversation {
	t.Helper()
	v := &conversation{t: t, c: w.echo(t, 7, reachLimit)}
	v.goesOn(reachLimit)
	return v
}

// echo opens a connection from pod a to pod b; what is sent on it comes back.
func (w *world) echo(t testing.TB, port int, limit time.Duration) net.Conn {
	t.Helper()
	l := w.b.pod.listen(fmt.Sprintf(":%d", port))
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	c, err := w.a.pod.dial("tcp4", fmt.Sprintf("10.200.0.7:%d", port), limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// goesOn wants an answer over the old connection in time, and returns how long it took.
func (v *conversation) goesOn(limit time.Duration) time.Duration {
	v.t.Helper()
	start := time.Now()
	v.c.SetDeadline(start.Add(limit))
	buf := []byte("still there?")
	if _, err := v.c.Write(buf); err != nil {
		v.t.Fatal(err)
	}
	if _, err := io.ReadFull(v.c, buf); err != nil {
		v.t.Fatalf("the connection does not go on: %v", err)
	}
	return time.Since(start)
}

func (d *board) pid(t testing.TB) int {
	t.Helper()
	st, err := d.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st.PID
}

// Applying the same again, and adding and removing another peer, does not touch a
// connection to the first.
func TestApplyLeavesOtherPeersAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	_, other := newKeys(t)
	with := w.a.want
	with.Peers = append(with.Peers[:1:1], Peer{ID: "c", PublicKey: other, LocalMappedCIDR: aSeenByB, PeerMappedCIDR: netip.MustParsePrefix("10.202.0.0/16")})
	// Of two handshakes that crossed one may be repeated 5 s later (WireGuard's REKEY_TIMEOUT). In the second round that is over.
	for round := 1; ; round++ {
		done := make(chan struct{})
		go func() {
			defer close(done)
			stream(t, w.a.pod, w.b.pod, "10.200.0.7", "10.201.0.5", 16<<20)
		}()
		var before Status
		await.True(t, reachLimit, "a session in use", func() bool {
			var err error
			before, err = w.a.Status(t.Context())
			return err == nil && len(before.Peers) >= 1 && !before.Peers[0].LastHandshake.IsZero() && before.Peers[0].Sent > 1<<20
		})
		n := 0
		for running := true; running; n++ {
			for _, c := range []Config{w.a.want, w.a.want, with} {
				if err := w.a.put(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case <-done:
				running = false
			default:
			}
		}
		st, err := w.a.Status(t.Context())
		t.Logf("%d configurations during 16 MiB", 3*n)
		switch {
		case err != nil || len(st.Peers) != 2:
			t.Fatalf("%+v, %v: want c beside b", st, err)
		case st.Peers[0].LastHandshake.Equal(before.Peers[0].LastHandshake):
			return
		case round == 2:
			t.Fatalf("%+v: want b's handshake of %s", st, before.Peers[0].LastHandshake)
		}
	}
}

// The kernel forgets connections that are masqueraded behind an interface with that: those of the LAN to a Service whose pods
// are at a peer. So it stays while there is no process, and goes with one that ends in order.
func TestKilledProcessLeavesTheInterface(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	index := func() (i int) {
		w.a.node.must(func() error {
			if link, err := netlink.LinkByName("riv0"); err == nil {
				i = link.Attrs().Index
			}
			return nil
		})
		return i
	}
	v, before, pid := converse(t, w), index(), w.a.pid(t)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	v.goesOn(reachLimit)
	if now, next := index(), w.a.pid(t); before == 0 || now != before || next == pid {
		t.Errorf("interface %d, want %d; pid %d, want another than %d", now, before, next, pid)
	}
	if err := unix.Kill(w.a.pid(t), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await.True(t, reachLimit, "another interface", func() bool { now := index(); return now != 0 && now != before })
}

// Who deletes the interface ends the WireGuard device. The process does not stay without one: the next makes another.
func TestDeletedInterfaceComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	answer(w.b.pod.listen(":80"))
	reach := func() error {
		c, err := w.a.pod.dial("tcp4", "10.200.0.7:80", time.Second)
		if err == nil {
			c.Close()
		}
		return err
	}
	await.NoError(t, t.Context(), reachLimit, "b answers", reach)
	w.a.node.must(func() error {
		link, err := netlink.LinkByName("riv0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
	await.NoError(t, t.Context(), 20*time.Second, "b answers again", reach)
}

func TestHangingProcessIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	w.a.Detach()
	w.a.Controller = NewController(w.a.config)
	w.a.checkEvery = 100 * time.Millisecond
	if err := w.a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.a.Apply(t.Context(), w.a.want); err != nil {
		t.Fatal(err)
	}
	pid := w.a.pid(t)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await.True(t, 2*hungAfter+reachLimit, "another process", func() bool {
		st, err := w.a.Status(t.Context())
		return err == nil && st.PID != pid && len(st.Peers) == 1
	})
	stream(t, w.a.pod, w.b.pod, "10.200.0.7", "10.201.0.5", 64<<10)
}

// A process that hangs before its first answer to the watch is noticed as well.
func TestHangBeforeTheWatchBegins(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "tunnel.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // it takes connections, and answers nothing
	c := NewController(ControllerConfig{Socket: socket, Log: slog.New(slog.DiscardHandler)})
	noticed := make(chan struct{})
	go func() { defer close(noticed); c.attend(t.Context()) }()
	select {
	case <-noticed:
	case <-time.After(4 * hungAfter):
		t.Error("the hang is not noticed")
	}
}

// A supervisor that goes and comes finds the process as it left it; one of
// another version replaces it.
func TestSupervisorComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	v := converse(t, w)
	pid := w.a.pid(t)
	w.a.Detach()
	v.goesOn(time.Second)

	w.a.Controller = NewController(w.a.config)
	ctx, leave := context.WithCancel(t.Context())
	started, left := make(chan struct{}), make(chan error, 1)
	go func() { left <- w.a.Run(ctx, func() { close(started) }) }()
	select {
	case <-started:
	case err := <-left:
		t.Fatal(err)
	}
	if now := w.a.pid(t); now != pid {
		t.Errorf("pid %d, want the one that ran: %d", now, pid)
	}
	if b, _ := os.ReadFile(w.a.config.PIDFile); strings.TrimSpace(string(b)) == "" {
		t.Error("no PID file")
	}
	w.apply(t)
	v.goesOn(time.Second)

	leave()
	if err := <-left; err != nil {
		t.Fatal(err)
	}
	v.goesOn(time.Second)
	w.a.config.Version = "another"
	w.a.Controller = NewController(w.a.config)
	if err := w.a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := w.a.pid(t); now == pid {
		t.Error("the process of another version was kept")
	}
	w.apply(t)
	v.goesOn(reachLimit)
}

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	if err := w.a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.a.node.must(func() error {
		if _, err := netlink.LinkByName("riv0"); err == nil {
			t.Error("riv0 is still there")
		}
		return nil
	})
	c, err := nftables.New(nftables.WithNetNSFd(int(w.a.node.ns)))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if table.Name == Table {
			t.Error("the nftables table is still there")
		}
	}
	for _, f := range []string{w.a.config.Socket, w.a.config.PIDFile} {
		if _, err := os.Stat(f); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there", f)
		}
	}
	if err := w.a.Start(t.Context()); err != nil { // Stop of the cleanup wants one
		t.Fatal(err)
	}
}

func TestTakenPortNamesItsHolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.a.node.packets(":7442")
	name, err := os.ReadFile("/proc/self/comm") // it depends on how the test was built
	if err != nil {
		t.Fatal(err)
	}
	err = w.a.Apply(t.Context(), w.a.want)
	for _, part := range []string{"7442/udp", " by " + strings.TrimSpace(string(name)), "pid"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Fatalf("%v: want an error that tells %q", err, part)
		}
	}
	other.Close()
	// A child that is just being forked has the socket too, for a moment.
	await.True(t, reachLimit, "the port is free again", func() bool { return w.a.Apply(t.Context(), w.a.want) == nil })
	w.apply(t)
	stream(t, w.a.pod, w.b.pod, "10.200.0.7", "10.201.0.5", 1<<10)

	// A port that cannot be had is no trap: the old one still works after going back.
	w.a.node.packets(":7000")
	wrong := w.a.want
	wrong.Port = 7000
	if err := w.a.Apply(t.Context(), wrong); err == nil {
		t.Fatal("a taken port was accepted")
	}
	w.apply(t)
	stream(t, w.a.pod, w.b.pod, "10.200.0.7", "10.201.0.5", 1<<10)
}

// quiet returns when nothing has been sent for a while.
func (d *board) quiet() {
	last, since := uint64(0), time.Now()
	await.True(d.node.t, 2*reachLimit, "a quiet tunnel", func() bool {
		st, err := d.Status(d.node.t.Context())
		if err == nil && st.Peers[0].Sent != last {
			last, since = st.Peers[0].Sent, time.Now()
		}
		return time.Since(since) > 300*time.Millisecond
	})
}

// A device that gets another address is found again although only the other side
// knows where anybody is.
func TestDeviceMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	v := converse(t, w)
	w.a.quiet()
	w.a.node.must(func() error {
		if err := take("eth0", "192.168.77.1/24"); err != nil {
			return err
		}
		return testns.Give("eth0", "192.168.77.99/24")
	})
	took := await.True(t, reachLimit, "b sees a at its new address", func() bool {
		st, err := w.b.Status(t.Context())
		return err == nil && st.Peers[0].Endpoint == netip.MustParseAddrPort("192.168.77.99:7442")
	})
	t.Logf("seen after %s", took)
	v.goesOn(reachLimit)
}

// A peer that was away is offered a session as soon as its path answers: one that started again without a clock cannot
// begin one itself, and the old one would be good for another two minutes.
func TestWhoComesBackIsOfferedASession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	v := converse(t, w)
	w.a.quiet()
	cable := func(set func(netlink.Link) error) {
		w.a.node.must(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return set(link)
		})
	}
	peer := func() PeerStatus {
		st, err := w.a.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st.Peers[0]
	}
	before := peer().LastHandshake
	cable(netlink.LinkSetDown)
	await.True(t, 2*reachLimit, "no path answers, and WireGuard would begin a handshake again", func() bool {
		alive := slices.ContainsFunc(peer().Paths, func(p paths.PathStatus) bool { return p.Alive })
		return !alive && time.Since(before) > device.RekeyTimeout
	})
	cable(netlink.LinkSetUp)
	took := await.True(t, reachLimit, "a new session", func() bool { return peer().LastHandshake.After(before) })
	t.Logf("after %s", took)
	v.goesOn(reachLimit)
}

// A cable that carries less than the tunnel thinks costs fragments, not connections.
func TestNarrowCable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, d := range []*board{w.a, w.b} {
		d.node.must(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(link, 1300)
		})
	}
	w.apply(t)
	stream(t, w.a.pod, w.b.pod, "10.200.0.7", "10.201.0.5", 4<<20)
}

// What carries the interface's name and is not in use is replaced or, if it may be
// somebody's, named.
func TestInterfaceIsThereAlready(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.a.node.must(func() error {
		return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "riv0"}, Mode: netlink.TUNTAP_MODE_TAP})
	})
	w.b.node.must(func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "riv0"}})
	})
	if err := w.a.Apply(t.Context(), w.a.want); err != nil {
		t.Errorf("a TUN of nobody: %v", err)
	}
	if err := w.b.Apply(t.Context(), w.b.want); err == nil || !strings.Contains(err.Error(), "ip link del riv0") {
		t.Errorf("a bridge of that name: %v, want an error with the cure", err)
	}
}

func TestNetworksOfTheHostAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.a.want
	_, other := newKeys(t)
	c.Peers = append(c.Peers[:1:1], Peer{ID: "c", PublicKey: other, LocalMappedCIDR: aSeenByB, PeerMappedCIDR: netip.MustParsePrefix("192.168.77.0/24")})
	if err := w.a.Apply(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if p := w.a.problem(t, "c"); p == nil || p.Partly || !strings.Contains(p.Text, "network of this host") {
		t.Errorf("c has the problem %+v, want that its prefix is in use", p)
	}
	if p := w.a.problem(t, "b"); p != nil {
		t.Errorf("b has the problem %+v", p)
	}
	w.a.node.must(func() error {
		routes, err := netlink.RouteGet(net.IPv4(192, 168, 77, 2))
		if err != nil {
			return err
		}
		eth0, err := netlink.LinkByName("eth0")
		if err == nil && routes[0].LinkIndex != eth0.Attrs().Index {
			t.Error("the route to the LAN is gone")
		}
		return err
	})
	if err := w.b.Apply(t.Context(), w.b.want); err != nil {
		t.Fatal(err)
	}
	stream(t, w.b.pod, w.a.pod, "10.201.0.5", "10.200.0.7", 1<<10) // b does not suffer
}

// problem is what the data plane says of a peer.
func (d *board) problem(t testing.TB, id string) *Problem {
	t.Helper()
	st, err := d.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range st.Peers {
		if p.ID == id {
			return p.Problem
		}
	}
	t.Fatalf("%s is not in the status", id)
	return nil
}

// One peer that cannot be served, in every way that a neighbour can bring about, changes
// nothing for the one that is there, for the one that comes with it, nor after the process
// has died: the keys and the prefixes are those of the first.
func TestOnePeerDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	v := converse(t, w)
	b := w.a.want.Peers[0]
	_, theirs := newKeys(t)
	bad := func(change func(*Peer)) Peer {
		p := Peer{ID: "x", PublicKey: theirs, Endpoint: netip.MustParseAddrPort("192.168.77.66:7442"), LocalMappedCIDR: aSeenByB, PeerMappedCIDR: netip.MustParsePrefix("10.203.0.0/16")}
		change(&p)
		return p
	}
	host := netip.MustParsePrefix("10.203.0.0/16") // x's prefix as a network of the host
	cases := map[string]struct {
		peer   Peer
		want   string
		partly bool
	}{
		"no key":                         {bad(func(p *Peer) { p.PublicKey = wgkey.Public{} }), "no WireGuard key", false},
		"our key":                        {bad(func(p *Peer) { p.PublicKey = w.a.want.PrivateKey.Public() }), "key of this cluster", false},
		"the key of b":                   {bad(func(p *Peer) { p.PublicKey = b.PublicKey }), "another peer", false},
		"the prefix of b":                {bad(func(p *Peer) { p.PeerMappedCIDR = b.PeerMappedCIDR }), "overlaps", false},
		"a part of the prefix of b":      {bad(func(p *Peer) { p.PeerMappedCIDR = netip.MustParsePrefix("10.200.0.0/24") }), "overlaps", false},
		"our pods":                       {bad(func(p *Peer) { p.PeerMappedCIDR = podCIDR }), "overlaps", false},
		"no prefix":                      {bad(func(p *Peer) { p.PeerMappedCIDR = netip.Prefix{} }), "not an IPv4 prefix", false},
		"we are seen as another size":    {bad(func(p *Peer) { p.LocalMappedCIDR = netip.MustParsePrefix("10.201.0.0/24") }), "sizes differ", false},
		"an endpoint in the prefix of b": {bad(func(p *Peer) { p.Endpoint = netip.MustParseAddrPort("10.200.0.7:7442") }), "inside the tunnel", true},
		"an endpoint in its own prefix":  {bad(func(p *Peer) { p.Endpoint = netip.MustParseAddrPort("10.203.0.7:7442") }), "inside the tunnel", true},
		"an endpoint among our pods":     {bad(func(p *Peer) { p.Endpoint = netip.MustParseAddrPort("[::ffff:10.42.0.5]:7442") }), "inside the tunnel", true},
		"a network of the host":          {bad(func(p *Peer) { p.PeerMappedCIDR = host }), "network of this host", false},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			if tt.peer.PeerMappedCIDR == host && tt.want == "network of this host" {
				w.a.node.must(func() error { return testns.Give("eth0", "10.203.0.1/16") })
				defer w.a.node.must(func() error { return take("eth0", "10.203.0.1/16") })
			}
			_, fresh := newKeys(t)
			with := w.a.want
			with.Peers = []Peer{b, tt.peer, {ID: "new", PublicKey: fresh, LocalMappedCIDR: aSeenByB, PeerMappedCIDR: netip.MustParsePrefix("10.204.0.0/16")}}
			if err := w.a.Apply(t.Context(), with); err != nil {
				t.Fatalf("all of it is refused: %v", err)
			}
			check := func() {
				t.Helper()
				if p := w.a.problem(t, "x"); p == nil || !strings.Contains(p.Text, tt.want) || p.Cure == "" || p.Partly != tt.partly {
					t.Errorf("x has the problem %+v, want one with %q and a cure", p, tt.want)
				}
				for _, id := range []string{"b", "new"} {
					if p := w.a.problem(t, id); p != nil {
						t.Errorf("%s has the problem %+v", id, p)
					}
				}
				w.a.node.must(func() error {
					routes, err := netlink.RouteGet(net.IPv4(10, 204, 0, 1))
					riv0, e := netlink.LinkByName("riv0")
					if err := errors.Join(err, e); err != nil {
						return err
					}
					if routes[0].LinkIndex != riv0.Attrs().Index {
						t.Error("the new peer has no route")
					}
					return nil
				})
				v.t = t
				v.goesOn(reachLimit)
			}
			check()
		})
	}
	_, fresh := newKeys(t)
	with := w.a.want
	with.Peers = []Peer{b}
	for name, tt := range cases {
		tt.peer.ID = name
		with.Peers = append(with.Peers, tt.peer)
	}
	with.Peers = append(with.Peers, Peer{ID: "new", PublicKey: fresh, LocalMappedCIDR: aSeenByB, PeerMappedCIDR: netip.MustParsePrefix("10.204.0.0/16")})
	if err := w.a.Apply(t.Context(), with); err != nil {
		t.Fatal(err)
	}
	pid := w.a.pid(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await.True(t, reachLimit, "another process with all that can be", func() bool {
		st, err := w.a.Status(t.Context())
		return err == nil && st.PID != pid && st.Port != 0
	})
	v.t = t
	v.goesOn(reachLimit)
	for _, id := range []string{"b", "new"} {
		if p := w.a.problem(t, id); p != nil {
			t.Errorf("after a restart %s has the problem %+v", id, p)
		}
	}
}

// While the LAN is a network inside the prefix of a peer, the others on it stay reachable;
// a route of the host that is gone again gives the prefix back, without being told.
func TestLANInsideAPrefix(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, other := newKeys(t)
	with := w.a.want
	with.Peers = []Peer{{ID: "c", PublicKey: other, LocalMappedCIDR: aSeenByB, PeerMappedCIDR: netip.MustParsePrefix("192.168.0.0/16")}, w.a.want.Peers[0]}
	if err := w.a.Apply(t.Context(), with); err != nil {
		t.Fatal(err)
	}
	if err := w.b.Apply(t.Context(), w.b.want); err != nil {
		t.Fatal(err)
	}
	stream(t, w.a.pod, w.b.pod, "10.200.0.7", "10.201.0.5", 1<<10)
	if p := w.a.problem(t, "b"); p != nil {
		t.Errorf("b has the problem %+v", p)
	}

	w.a.node.must(func() error { return testns.Give("eth0", "10.203.0.1/16") })
	with.Peers = []Peer{w.a.want.Peers[0], {ID: "c", PublicKey: other, LocalMappedCIDR: aSeenByB, PeerMappedCIDR: netip.MustParsePrefix("10.203.0.0/16")}}
	if err := w.a.Apply(t.Context(), with); err != nil {
		t.Fatal(err)
	}
	if w.a.problem(t, "c") == nil {
		t.Error("a network of the host is the prefix of c, and there is no problem")
	}
	w.a.node.must(func() error { return take("eth0", "10.203.0.1/16") })
	await.True(t, reachLimit, "the prefix of c is free", func() bool { return w.a.problem(t, "c") == nil })
}

func TestOneProcessPerSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*holdLimit)
	defer cancel()
	err := NewServer("x", w.a.config.Log).Serve(ctx, w.a.config.Socket)
	if err == nil || !strings.Contains(err.Error(), "another rivulet-tunnel") {
		t.Fatalf("%v, want a refusal", err)
	}
	if _, err := w.a.Status(t.Context()); err != nil {
		t.Fatalf("the first does not answer any more: %v", err)
	}
	fi, err := os.Stat(w.a.config.Socket)
	if err != nil || fi.Mode().Perm() != 0o600 || fi.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("%v, %v: want a socket for root alone", fi, err)
	}
}
