//go:build !race

package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/fabric/changes"
	"rivulet/test/harness/await"
)

// lease is long enough for a loaded machine to renew it in time.
const lease = 3 * time.Second

// renew moves the deadline to a lease from now, and returns it.
func (d *board) renew(t testing.TB, wantConfigured bool) time.Duration {
	t.Helper()
	at := changes.BootTime() + lease
	configured, err := d.Deadline(t.Context(), at)
	if err != nil || configured != wantConfigured {
		t.Fatalf("configured %t, %v: want %t", configured, err, wantConfigured)
	}
	return at
}

// leased applies the configuration of a with a lease, and that of b. The lease is renewed until the first connection.
func (w *world) leased(t *testing.T) *conversation {
	t.Helper()
	w.a.want.Leased = true
	w.a.renew(t, false)
	w.apply(t)
	ctx, connected := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = await.Until(ctx, func() error {
			_, err := w.a.Deadline(ctx, changes.BootTime()+lease)
			return errors.Join(errors.New("once more"), err)
		})
	}()
	defer func() { connected(); <-ended }()
	return converse(t, w)
}

func (d *board) port(t testing.TB) uint16 {
	t.Helper()
	st, err := d.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st.Port
}

// until waits for a time on CLOCK_BOOTTIME.
func until(t testing.TB, at time.Duration) {
	t.Helper()
	await.True(t, reachLimit, "the time", func() bool { return changes.BootTime() > at })
}

// heard is when the last packet of WireGuard from the address arrived, on CLOCK_BOOTTIME.
func (r *room) heard(link string, from netip.Addr) *atomic.Int64 {
	r.t.Helper()
	var fd int
	r.must(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		const ip = unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, ip); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ip, Ifindex: l.Attrs().Index}); err != nil {
			return err
		}
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	})
	last := new(atomic.Int64)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer unix.Close(fd)
		for buf := make([]byte, 1<<16); r.t.Context().Err() == nil; {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil || n < 28 || buf[9] != unix.IPPROTO_UDP || netip.AddrFrom4([4]byte(buf[12:16])) != from {
				continue
			}
			if binary.BigEndian.Uint16(buf[20:]) == wgPort {
				last.Store(int64(changes.BootTime()))
			}
		}
	}()
	r.t.Cleanup(func() { <-ended })
	return last
}

// flood sends packets from pod a to pod b until the test ends.
func (w *world) flood(t testing.TB) {
	t.Helper()
	c, err := w.a.pod.dial("udp4", "10.200.0.7:9", reachLimit)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer c.Close()
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for t.Context().Err() == nil {
			<-tick.C
			_, _ = c.Write(make([]byte, 200)) // nobody listens, and there may be no tunnel
		}
	}()
	t.Cleanup(func() { <-ended })
}

func TestNoLeaseNoTunnel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	leased := w.a.want
	leased.Leased = true
	refused := func(what string) {
		t.Helper()
		if err := w.a.Apply(t.Context(), leased); err == nil || !strings.Contains(err.Error(), "lease") {
			t.Errorf("%s: %v, want a refusal", what, err)
		}
	}
	refused("no deadline")
	for _, at := range []time.Duration{-1, 0, 1, changes.BootTime() - time.Second, changes.BootTime()} {
		if _, err := w.a.Deadline(t.Context(), at); err == nil {
			t.Errorf("a deadline at %s is accepted, and it is %s", at, changes.BootTime())
		}
	}
	refused("a deadline in the past")

	w.apply(t) // without a lease
	if w.a.port(t) == 0 {
		t.Fatal("not in force without a lease")
	}
	refused("a lease is needed from now on")
	if w.a.port(t) != 0 {
		t.Error("the tunnel is open without the lease that it needs")
	}
}

// Traffic flows while the lease is renewed, ends in time when it is not, and goes on with the next lease.
func TestTunnelEndsWithTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	heard := w.b.node.heard("eth0", netip.MustParseAddr("192.168.77.1"))
	v := w.leased(t)
	w.flood(t)
	pid := w.a.pid(t)
	end := w.a.renew(t, true)
	for first := end; changes.BootTime() < first+lease/2; {
		end = w.a.renew(t, true)
		v.goesOn(lease)
	}
	if configured, err := w.a.Deadline(t.Context(), end-lease/2); err != nil || !configured {
		t.Errorf("an earlier deadline: configured %t, %v", configured, err)
	}

	until(t, end-lease/3)
	if left := end - changes.BootTime(); w.a.port(t) == 0 && end-changes.BootTime() > closeBefore {
		t.Errorf("closed %s before the deadline", left)
	}
	await.True(t, lease, "the tunnel is closed", func() bool { return w.a.port(t) == 0 })
	w.a.node.must(func() error {
		if _, err := netlink.LinkByName("riv0"); err == nil {
			t.Error("riv0 is still there")
		}
		return nil
	})
	until(t, end+lease/2)
	last := time.Duration(heard.Load())
	if last == 0 || last > end {
		t.Errorf("the last packet came %s after the deadline", last-end)
	}
	if now := w.a.pid(t); now != pid {
		t.Errorf("pid %d, want %d: a process that runs closes its device in time", now, pid)
	}

	w.a.renew(t, false)
	if err := w.a.Apply(t.Context(), w.a.want); err != nil { // the same as before
		t.Fatal(err)
	}
	w.a.renew(t, true)
	v.goesOn(lease)
}

// A process that was frozen sends nothing when it goes on after its deadline, whatever waits in it: the peer stays with
// the device that has taken over.
func TestFrozenPastItsDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	heir := newDevice(t, "10.42.0.5/24")
	cable(w.b.node, "eth1", "192.168.78.2/24", heir.node, "eth0", "192.168.78.1/24")
	heir.want = w.a.want
	heir.want.Peers = append([]Peer(nil), w.a.want.Peers...)
	heir.want.Peers[0].Endpoint = netip.MustParseAddrPort("192.168.78.2:7442")
	heard := w.b.node.heard("eth0", netip.MustParseAddr("192.168.77.1"))
	w.leased(t)
	w.flood(t)
	end := w.a.renew(t, true)
	at := func() netip.AddrPort {
		st, err := w.b.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st.Peers[0].Endpoint
	}
	if got := at(); got.Addr() != netip.MustParseAddr("192.168.77.1") {
		t.Fatalf("the peer is with %s", got)
	}

	pid := w.a.pid(t)
	w.a.Detach() // the supervisor is frozen, too
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, end)
	if err := heir.Apply(t.Context(), heir.want); err != nil {
		t.Fatal(err)
	}
	second := netip.MustParseAddrPort("192.168.78.1:7442")
	await.True(t, reachLimit, "the peer is with the heir", func() bool { return at() == second })
	if err := unix.Kill(pid, unix.SIGCONT); err != nil && !errors.Is(err, unix.ESRCH) {
		t.Fatal(err)
	}
	goesOn := changes.BootTime()
	await.True(t, reachLimit, "time for packets of the first", func() bool {
		if got := at(); got != second {
			t.Fatalf("the peer is with %s", got)
		}
		return changes.BootTime() > goesOn+2*time.Second
	})
	if last := time.Duration(heard.Load()); last > end {
		t.Errorf("a packet came %s after the process went on", last-goesOn)
	}
	if err := w.a.Start(t.Context()); err != nil { // Stop of the cleanup wants one
		t.Fatal(err)
	}
}

// A process that dies is configured again within the lease, and waits for the next one after it.
func TestKilledProcessWithALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := w.leased(t)
	kill := func() {
		t.Helper()
		pid := w.a.pid(t)
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await.True(t, reachLimit, "another process", func() bool {
			st, err := w.a.Status(t.Context())
			return err == nil && st.PID != pid
		})
	}
	end := w.a.renew(t, true)
	kill()
	await.True(t, end-changes.BootTime(), "configured within the lease", func() bool { return w.a.port(t) != 0 })

	until(t, end)
	kill()
	w.a.renew(t, false)
	if err := w.a.Apply(t.Context(), w.a.want); err != nil {
		t.Fatal(err)
	}
	w.a.renew(t, true)
	v.goesOn(lease)
}

// Deadlines end no tunnel that needs no lease.
func TestDeadlineWithoutALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := w.leased(t)
	w.a.want.Leased = false
	w.apply(t)
	v.goesOn(reachLimit)
	pid := w.a.pid(t)
	end := w.a.renew(t, true)
	until(t, end+lease/3)
	v.goesOn(reachLimit)
	if now := w.a.pid(t); now != pid || w.a.port(t) == 0 {
		t.Errorf("pid %d, want %d; port %d", now, pid, w.a.port(t))
	}
}
