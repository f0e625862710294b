package netmon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

func TestMain(m *testing.M) {
	testns.Enter()
	os.Exit(m.Run())
}

// logs is a log that may be read while it is written.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// linkIn makes a link of a kind in a room.
func linkIn(room testns.Room, name, kind string) (link netlink.Link) {
	room.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		link = &netlink.Veth{LinkAttrs: attrs, PeerName: name + "-far"}
		if kind == "bridge" {
			link = &netlink.Bridge{LinkAttrs: attrs}
		}
		return errors.Join(netlink.LinkAdd(link), netlink.LinkSetUp(link))
	})
	return link
}

// A router's advertisements and a DHCP server's renewals, an address that is deprecated, and networks of containers are no
// moves; another address and another default route are.
func TestARenewalIsNoMove(t *testing.T) {
	room := testns.New(t)
	link, bridge := linkIn(room, "lan0", "veth"), linkIn(room, "podman0", "bridge")
	set := func(l netlink.Link, cidr string, valid, preferred int) error {
		a, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		a.ValidLft, a.PreferedLft, a.Flags = valid, preferred, unix.IFA_F_NODAD
		return netlink.AddrReplace(l, a)
	}
	leave := func(by string) error {
		return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(by)})
	}
	room.Do(func() error {
		return errors.Join(set(link, "192.0.2.5/24", 600, 600), set(link, "2001:db8::5/64", 600, 600), leave("192.0.2.1"))
	})
	ctx, cancel := context.WithCancel(t.Context())
	log := slog.New(slog.DiscardHandler)
	moves, quiet := make(chan struct{}, 100), make(chan struct{}, 100)
	var both sync.WaitGroup
	defer both.Wait()
	defer cancel()
	run := func(follow func()) {
		both.Go(func() {
			if err := room.Try(func() error { follow(); return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	run(func() { FollowHost(ctx, log, func() { moves <- struct{}{} }) })
	run(func() { // tells when the kernel has been quiet for as long
		follow(ctx, log, hostSettle, func() error { quiet <- struct{}{}; return nil },
			addresses(func(netlink.AddrUpdate) bool { return true }), routes(func(netlink.RouteUpdate) bool { return true }))
	})
	hear := func(c chan struct{}, what string) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(20 * time.Second):
			t.Fatal("not told of ", what)
		}
	}
	hear(moves, "the start")
	hear(quiet, "the start")
	for range 3 {
		room.Do(func() error {
			for i := range 100 {
				preferred := 600 + i
				if i%10 == 0 {
					preferred = 0
				}
				if err := errors.Join(set(link, "192.0.2.5/24", 700+i, preferred), set(link, "2001:db8::5/64", 700+i, preferred), leave("192.0.2.1")); err != nil {
					return err
				}
			}
			return set(bridge, "10.88.0.1/16", 0, 0)
		})
		hear(quiet, "renewals")
	}
	if n := len(moves); n > 0 {
		t.Errorf("%d moves of a host that has only renewed its addresses", n)
	}
	room.Do(func() error { return set(link, "192.0.2.6/24", 0, 0) })
	hear(moves, "another address")
	room.Do(func() error { return leave("192.0.2.2") })
	hear(moves, "another default route")
	if n := len(moves); n > 0 {
		t.Errorf("%d moves too many", n)
	}
}

// More happens than is read, as while a machine is busy or a process is stopped: the
// kernel drops the subscription's messages. What was missed is looked at, and what
// happens afterwards is seen.
func TestOverrunEndsNothing(t *testing.T) {
	for name, follow := range map[string]func(context.Context, *slog.Logger, func()){
		"addresses": FollowHost,
		"routes": func(ctx context.Context, log *slog.Logger, changed func()) {
			FollowRoutes(ctx, "riv0", log, changed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			room := testns.New(t)
			link := linkIn(room, "lan0", "veth")
			change := func(n int, cidr string) {
				t.Helper()
				room.Do(func() error {
					for range n {
						a, err := netlink.ParseAddr(cidr)
						if err != nil {
							return err
						}
						r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(10, 98, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}, Scope: netlink.SCOPE_LINK}
						if err := errors.Join(netlink.AddrReplace(link, a), netlink.RouteReplace(r), netlink.RouteDel(r), netlink.AddrDel(link, a)); err != nil {
							return err
						}
					}
					a, err := netlink.ParseAddr(cidr)
					return errors.Join(err, netlink.AddrReplace(link, a)) // what is left is another set than before
				})
			}
			told, gate := make(chan struct{}, 1), make(chan struct{})
			var out logs
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- room.Try(func() error {
					follow(ctx, slog.New(slog.NewTextHandler(&out, nil)), func() {
						select {
						case told <- struct{}{}:
						default:
						}
						<-gate
					})
					return nil
				})
			}()
			hear := func(what string) {
				t.Helper()
				select {
				case <-told:
				case <-time.After(20 * time.Second):
					t.Fatalf("not told of %s: %s", what, out.String())
				}
			}
			hear("what was there before") // and now it does not read
			change(3000, "10.99.0.1/24")
			close(gate)
			hear("what may have been missed")
			await.NoError(t, t.Context(), 20*time.Second, "an overrun", func() error {
				if s := out.String(); !strings.Contains(s, "lost sight") {
					return fmt.Errorf("%q", s)
				}
				return nil
			})
			if s := out.String(); !strings.Contains(s, syscall.ENOBUFS.Error()) && !strings.Contains(s, "closed") {
				t.Errorf("it ended for another reason: %s", out.String())
			}
			for drained := false; !drained; { // nothing more comes of the flood
				select {
				case <-told:
				case <-time.After(5 * settle):
					drained = true
				}
			}
			change(1, "10.99.1.1/24")
			hear("a change after the overrun")
			cancel()
			if err := <-ended; err != nil {
				t.Error(fmt.Errorf("follow: %w", err))
			}
		})
	}
}
