package netmon

import (
	"context"
	"log/slog"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// FollowRoutes calls changed after routes to networks have changed (IPv4; without default routes and those through the
// interface except), several changes as one, until ctx ends.
func FollowRoutes(ctx context.Context, except string, log *slog.Logger, changed func()) {
	follow(ctx, log, settle, func() error { changed(); return nil },
		routes(func(u netlink.RouteUpdate) bool { return toNetwork(u.Route) && !through(u.Route, except) }))
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

// FollowLink calls changed after the link of the index, its addresses or its routes have changed, several changes as
// one, until ctx ends; also at the start, and whenever changes may have been missed.
func FollowLink(ctx context.Context, log *slog.Logger, index func() int, changed func()) {
	follow(ctx, log, settle, func() error { changed(); return nil },
		links(func(u netlink.LinkUpdate) bool { return u.Link.Attrs().Index == index() }),
		addresses(func(u netlink.AddrUpdate) bool { return u.LinkIndex == index() }),
		routes(func(u netlink.RouteUpdate) bool { return u.LinkIndex == index() }))
}
