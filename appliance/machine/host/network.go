package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"rivulet/appliance/health"
	"rivulet/fabric/changes"
	"rivulet/fabric/netmon"
	"rivulet/fabric/nft"
	"rivulet/fabric/sysctl"
)

// Ranges knows the network of peers' addresses.
type Ranges interface{ PodsBlock() netip.Prefix }

// Network is the host's network state that pods need.
type Network struct {
	// Rules makes the owners of nftables tables restore them.
	Rules *nft.Guard
	// Node is the node's address, Services the network of Services, Bridge the bridge of pods.
	Node netip.Addr
	// Further are those of virtual nodes; nil has none.
	Further  *Further
	Services netip.Prefix
	Bridge   string
	// Networks are the cluster's, Ranges has that of peers' addresses: no rule of others leads their packets elsewhere.
	Networks []netip.Prefix
	Ranges   Ranges
	Health   *health.Tracker
	Log      *slog.Logger
}

// settings enable forwarding for pods, and filtering of packets between pods of one bridge.
var settings = []sysctl.Setting{{Name: "net/ipv4/ip_forward", Value: "1"}, {Name: "net/bridge/bridge-nf-call-iptables", Value: "1"}}

// Keep restores what other programs change: rules, the node's address, the routes to Services and pods, the rules that
// lead to these, and kernel settings, until ctx ends. It calls ready after the start.
func (n Network) Keep(ctx context.Context, ready func()) error {
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return n.Rules.Run(ctx, ready) })
	both.Go(func() error { return n.keep(ctx) })
	return both.Wait()
}

func (n Network) networks() []netip.Prefix {
	if n.Ranges == nil {
		return n.Networks
	}
	return append(slices.Clone(n.Networks), n.Ranges.PodsBlock())
}

func (n Network) keep(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	poke := func() {
		changes.Poke(changed)
	}
	for _, name := range []string{"lo", n.Bridge} {
		go netmon.FollowLink(ctx, n.Log, func() int {
			if l, err := netlink.LinkByName(name); err == nil {
				return l.Attrs().Index
			}
			return 0
		}, poke)
	}
	tick := time.NewTicker(sysctl.Interval)
	defer tick.Stop()
	var failed error     // of addresses and routes
	logged := time.Now() // what is missing at the start was not removed by others
	note := func(what []string) {
		if len(what) > 0 && time.Since(logged) > time.Minute {
			logged = time.Now()
			n.Log.Warn("another program has changed what the cluster's network needs; put back", "what", what)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			own, err := EnsureNodeAddress(n.Node, n.Services)
			bridge, e := ensureBridgeRoutes(n.Bridge)
			virtual, e2 := n.Further.putBack()
			failed = errors.Join(err, e, e2)
			note(slices.Concat(own, bridge, virtual))
		case <-tick.C:
		}
		what, err := sysctl.Keep(settings...)
		missing, rules := ensureRules(n.networks()) // the kernel tells none of our subscriptions of rules
		note(append(what, missing...))
		if err = errors.Join(failed, err, rules); err != nil {
			err = fmt.Errorf("host: packets of pods may go nowhere: %w", err)
		}
		n.Health.Report(health.HostNetwork, err)
	}
}
