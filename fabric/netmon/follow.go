package netmon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// source is one kind of the kernel's events.
type source struct {
	what string
	// subscribe begins a subscription that ends with done. It calls due for each event that counts, fail with the first
	// error, and ended when no more events will come.
	subscribe func(done <-chan struct{}, due, ended func(), fail func(error)) error
}

// events makes a source of one of netlink's subscriptions. Counts reports whether an event counts.
func events[T any](what string, subscribe func(updates chan<- T, done <-chan struct{}, fail func(error)) error, counts func(T) bool) source {
	return source{what, func(done <-chan struct{}, due, ended func(), fail func(error)) error {
		updates := make(chan T, 64)
		if err := subscribe(updates, done, fail); err != nil {
			return err
		}
		go func() { // drain it, or the subscription never ends
			defer ended()
			for u := range updates {
				if counts(u) {
					due()
				}
			}
		}()
		return nil
	}}
}

func links(counts func(netlink.LinkUpdate) bool) source {
	return events("links", func(c chan<- netlink.LinkUpdate, done <-chan struct{}, fail func(error)) error {
		return netlink.LinkSubscribeWithOptions(c, done, netlink.LinkSubscribeOptions{ErrorCallback: fail})
	}, counts)
}

func addresses(counts func(netlink.AddrUpdate) bool) source {
	return events("addresses", func(c chan<- netlink.AddrUpdate, done <-chan struct{}, fail func(error)) error {
		return netlink.AddrSubscribeWithOptions(c, done, netlink.AddrSubscribeOptions{ErrorCallback: fail})
	}, counts)
}

func routes(counts func(netlink.RouteUpdate) bool) source {
	return events("routes", func(c chan<- netlink.RouteUpdate, done <-chan struct{}, fail func(error)) error {
		return netlink.RouteSubscribeWithOptions(c, done, netlink.RouteSubscribeOptions{ErrorCallback: fail})
	}, counts)
}

// follow calls changed when the sources have been quiet for a while after an event that counts, until ctx ends. A
// subscription that fails (an overrun of its socket, or changed) is renewed, and changed is called at once, because
// events may have been missed, as before the first subscription.
func follow(ctx context.Context, log *slog.Logger, quiet time.Duration, changed func() error, sources ...source) {
	for ctx.Err() == nil {
		if err := once(ctx, quiet, changed, sources); err != nil && ctx.Err() == nil {
			log.Warn("lost sight of the network, trying again", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func once(ctx context.Context, quiet time.Duration, changed func() error, sources []source) error {
	done, broken, event := make(chan struct{}), make(chan error, 1), make(chan struct{})
	defer close(done)
	due := func() {
		select {
		case event <- struct{}{}:
		case <-done:
		}
	}
	for _, s := range sources {
		fail := func(err error) {
			select {
			case broken <- fmt.Errorf("netmon: receive %s: %w", s.what, err):
			default:
			}
		}
		if err := s.subscribe(done, due, func() { fail(fmt.Errorf("channel closed")) }, fail); err != nil {
			return fmt.Errorf("netmon: subscribe to %s: %w", s.what, err)
		}
	}
	timer := time.NewTimer(0) // changes before the subscription
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-broken:
			return err
		case <-event:
			timer.Reset(quiet)
		case <-timer.C:
			if err := changed(); err != nil {
				return err
			}
		}
	}
}

// hostSettle is how long the host's addresses must be quiet before a move counts: DHCP removes an address, adds another
// and sets routes, one after the other.
const hostSettle = 150 * time.Millisecond

// FollowHost calls moved when the set of the host's own addresses or its default routes has changed, several changes as
// one, until ctx ends; also at the start. An address whose lifetime a router or a DHCP server has renewed is the same, and
// so is one that is deprecated. Addresses of the loopback and of containers and their bridges do not count.
func FollowHost(ctx context.Context, log *slog.Logger, moved func()) {
	var before []string
	follow(ctx, log, hostSettle, func() error {
		now, err := whereabouts()
		if err != nil {
			return err
		}
		if before == nil || !slices.Equal(now, before) {
			before = now
			moved()
		}
		return nil
	},
		addresses(func(u netlink.AddrUpdate) bool {
			return u.LinkAddress.IP.IsGlobalUnicast() && u.Flags&unix.IFA_F_TENTATIVE == 0
		}),
		routes(func(u netlink.RouteUpdate) bool { return u.Table == unix.RT_TABLE_MAIN && isDefault(u.Dst) }))
}

// whereabouts are the host's addresses and default routes, sorted.
func whereabouts() ([]string, error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("netmon: list links: %w", err)
	}
	counts := map[int]bool{}
	for _, l := range links {
		inner := l.Attrs().Flags&net.FlagLoopback != 0 || slices.Contains([]string{"bridge", "veth"}, l.Type()) && !wiring(links).leads(l)
		counts[l.Attrs().Index] = !inner
	}
	addrs, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("netmon: list addresses: %w", err)
	}
	out := []string{}
	for _, a := range addrs {
		if counts[a.LinkIndex] && a.IP.IsGlobalUnicast() && a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
			out = append(out, fmt.Sprint(a.LinkIndex, " ", a.IPNet))
		}
	}
	all, err := Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("netmon: list routes: %w", err)
	}
	for _, r := range all {
		if isDefault(r.Dst) {
			out = append(out, fmt.Sprint("default ", r.Family, " ", r.LinkIndex, " ", r.Gw, " ", r.Priority, " ", r.MultiPath))
		}
	}
	slices.Sort(out)
	return out, nil
}

func isDefault(dst *net.IPNet) bool {
	if dst == nil {
		return true
	}
	bits, _ := dst.Mask.Size()
	return bits == 0
}
