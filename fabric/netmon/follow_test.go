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
			var lo netlink.Link
			room.Do(func() (err error) {
				if lo, err = netlink.LinkByName("lo"); err != nil {
					return err
				}
				return netlink.LinkSetUp(lo)
			})
			change := func(n int, cidr string) {
				t.Helper()
				room.Do(func() error {
					for range n {
						a, err := netlink.ParseAddr(cidr)
						if err != nil {
							return err
						}
						r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(10, 98, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}, Scope: netlink.SCOPE_LINK}
						if err := errors.Join(netlink.AddrReplace(lo, a), netlink.RouteReplace(r), netlink.RouteDel(r), netlink.AddrDel(lo, a)); err != nil {
							return err
						}
					}
					return nil
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
