package netmon

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// FollowRoutes calls changed after routes to networks (IPv4; not the default route,
// not those through the named interface) came or went, several changes as one,
// until ctx ends.
func FollowRoutes(ctx context.Context, except string, log *slog.Logger, changed func()) {
	for ctx.Err() == nil {
		if err := followRoutes(ctx, except, changed); err != nil && ctx.Err() == nil {
			log.Warn("lost sight of the routes, trying again", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func followRoutes(ctx context.Context, except string, changed func()) error {
	done := make(chan struct{})
	defer close(done)
	updates := make(chan netlink.RouteUpdate, 64)
	broken := make(chan error, 1)
	fail := func(err error) {
		select {
		case broken <- err:
		default:
		}
	}
	if err := netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{ErrorCallback: fail}); err != nil {
		return fmt.Errorf("netmon: subscribe to routes: %w", err)
	}
	due := time.NewTimer(0) // what happened before the subscription
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-broken:
			return fmt.Errorf("netmon: receive routes: %w", err)
		case u, ok := <-updates:
			if !ok {
				return fmt.Errorf("netmon: receive routes: channel closed")
			}
			if toNetwork(u.Route) && !through(u.Route, except) {
				due.Reset(settle)
			}
		case <-due.C:
			changed()
		}
	}
}

func toNetwork(r netlink.Route) bool {
	if r.Table == unix.RT_TABLE_LOCAL || r.Type != unix.RTN_UNICAST || r.Dst == nil || r.Dst.IP.To4() == nil {
		return false
	}
	bits, _ := r.Dst.Mask.Size()
	return bits > 0
}

func through(r netlink.Route, name string) bool {
	l, err := netlink.LinkByName(name)
	return err == nil && l.Attrs().Index == r.LinkIndex
}
