package netmon

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestWhichRoutesMatter(t *testing.T) {
	dst := func(s string) *net.IPNet { _, n, _ := net.ParseCIDR(s); return n }
	for _, c := range []struct {
		what string
		r    netlink.Route
		want bool
	}{
		{"a network", netlink.Route{Type: unix.RTN_UNICAST, Table: unix.RT_TABLE_MAIN, Dst: dst("10.8.0.0/16")}, true},
		{"a network in a VPN's table", netlink.Route{Type: unix.RTN_UNICAST, Table: 52, Dst: dst("100.64.0.7/32")}, true},
		{"the default route", netlink.Route{Type: unix.RTN_UNICAST, Table: unix.RT_TABLE_MAIN, Dst: dst("0.0.0.0/0")}, false},
		{"the default route, unnamed", netlink.Route{Type: unix.RTN_UNICAST, Table: unix.RT_TABLE_MAIN}, false},
		{"an own address", netlink.Route{Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Dst: dst("10.8.0.1/32")}, false},
		{"IPv6", netlink.Route{Type: unix.RTN_UNICAST, Table: unix.RT_TABLE_MAIN, Dst: dst("fd00::/64")}, false},
	} {
		if got := toNetwork(c.r); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

// Who asks is called once at first, for what was there before, and again after each
// change.
func TestFollowRoutesBegins(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	called := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		FollowRoutes(ctx, "riv0", slog.New(slog.DiscardHandler), func() {
			select {
			case called <- struct{}{}:
			default:
			}
		})
	}()
	select {
	case <-called:
	case <-time.After(10 * time.Second):
		t.Error("not called")
	}
	cancel()
	<-done
}
