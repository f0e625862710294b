// Package isolation keeps pods that run here for other clusters apart: from this
// cluster's own pods, from the host and its networks, and from each other where they
// belong to different clusters.
//
//	guest ─▶ its consumer's other guests, its home through the tunnel, cluster DNS,
//	         endpoints of its Services on other peers, public addresses
//	guest ◀─ the same, and peers that have no guests here
//	guest ─╳ everything else: new connections are dropped, both ways
//
// It reads what the container network says of each pod (the CNI result, which is there
// before the pod's first process), namespaces with their consumers, the fabric's links,
// and EndpointSlices in twins. It alone writes the nftables tables "rivulet-twins": one
// IPv4, which decides by address, and one on the bridge, by which a guest sends as
// nobody but itself, and IPv4 only. They stay when the supervisor ends, and are made
// anew when somebody has removed them; without guests there are none. While the
// supervisor is down a guest that is started anew is not held. What cannot be done shows
// as a problem of the part "isolation", and the rest is done.
//
// It is done here and not by the engine's NetworkPolicy controller because a consumer
// may bring NetworkPolicies of its own, which can only add to what is allowed.
package isolation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"rivulet/fabric/peer"
	"rivulet/offload/podnet"
)

// look is how often somebody's `nft flush ruleset` is made up for, and networks of
// the host that have come are seen.
const look = 15 * time.Second

// Config is what isolation goes by. All fields but Doors are required.
type Config struct {
	// Results is the folder of CNI results.
	Results string
	// DNS is the cluster IP of cluster DNS.
	DNS netip.Addr
	// Twins gives the consumer of each twin namespace.
	Twins func() map[string]peer.ID
	// Endpoints gives the addresses of endpoints that each consumer has told of.
	Endpoints func() map[peer.ID][]netip.Addr
	// Doors are namespaces of this cluster whose pods, controllers of ingress classes that
	// are lent, may open connections to guests; nil is none.
	Doors func() []string
	// Links are the peers.
	Links func() []peer.Link
	// Networks are the host's own, beside the private ones that are closed anyway.
	Networks func() []netip.Prefix
	// Changed gets a value when any of these may have changed.
	Changed <-chan struct{}
	// Report is told after each pass; nil is well.
	Report func(error)
	Log    *slog.Logger

	exists func(veth string) bool // for tests
	netns  int                    // for tests: the namespace to work in
}

// world is what the tables are made from.
type world struct {
	Guests []guest
	// Consumers are those of the guests, in order.
	Consumers []consumer
	// Others are the prefixes of peers without guests here.
	Others []netip.Prefix
	// Doors are pods of this cluster that may open connections to guests.
	Doors []netip.Addr
	// Closed are networks of the host.
	Closed []netip.Prefix
	DNS    netip.Addr
}

// guest is a pod that runs here for another cluster.
type guest struct {
	Addr      netip.Addr
	Veth, MAC string
	Consumer  peer.ID
}

// guests are the pods in twins.
func guests(pods []podnet.Pod, twins map[string]peer.ID) []guest {
	var out []guest
	for _, p := range pods {
		if id, guestly := twins[p.Namespace]; guestly {
			out = append(out, guest{Addr: p.Addr, Veth: p.Veth, MAC: p.MAC, Consumer: id})
		}
	}
	return out
}

type consumer struct {
	ID        peer.ID
	Home      netip.Prefix // invalid without a link
	Guests    []netip.Addr
	Endpoints []netip.Addr
}

// Run keeps the tables until ctx ends, and leaves them.
func Run(ctx context.Context, cfg Config) error {
	if cfg.exists == nil {
		cfg.exists = podnet.Exists
	}
	files, err := podnet.NewWatch(cfg.Results)
	if err != nil {
		return fmt.Errorf("isolation: %w", err)
	}
	defer files.Close()
	tick := time.NewTicker(look)
	defer tick.Stop()
	var last *world
	for {
		files.Look()
		now, err := cfg.gather()
		if err == nil && (last == nil || !reflect.DeepEqual(*last, now) || !cfg.stands(len(now.Guests) > 0)) {
			if err = cfg.build(now); err == nil {
				cfg.Log.Debug("guests are isolated", "guests", len(now.Guests), "consumers", len(now.Consumers))
				last = &now
			} else {
				last = nil
			}
		}
		cfg.Report(err)
		again := tick.C
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-cfg.Changed:
		case e, ok := <-files.Events():
			if !ok {
				return errors.New("isolation: the watch of CNI results has ended")
			}
			if e.Has(fsnotify.Chmod) && e.Op == fsnotify.Chmod {
				continue
			}
		case <-files.Errors():
		case <-again:
		}
	}
}

// gather reads the world. Nothing in it depends on an order of maps.
func (cfg Config) gather() (world, error) {
	pods, err := podnet.Read(cfg.Results, cfg.exists)
	if err != nil {
		return world{}, fmt.Errorf("isolation: %w", err)
	}
	twins := cfg.Twins()
	w := world{DNS: cfg.DNS, Guests: guests(pods, twins)}
	home := map[peer.ID]netip.Prefix{}
	has := map[peer.ID]bool{}
	for _, id := range twins {
		has[id] = true
	}
	for _, l := range cfg.Links() {
		home[l.ID] = l.Remote.Masked()
		if !has[l.ID] {
			w.Others = append(w.Others, l.Remote.Masked())
		}
	}
	if cfg.Doors != nil {
		doors := cfg.Doors()
		for _, p := range pods {
			if _, guest := twins[p.Namespace]; !guest && slices.Contains(doors, p.Namespace) {
				w.Doors = append(w.Doors, p.Addr)
			}
		}
	}
	told := cfg.Endpoints()
	byID := map[peer.ID]*consumer{}
	for _, g := range w.Guests {
		c := byID[g.Consumer]
		if c == nil {
			c = &consumer{ID: g.Consumer, Home: home[g.Consumer]}
			// Endpoints on other peers only: whoever tells of an address here, or of the
			// host, gains nothing by it.
			for _, a := range told[g.Consumer] {
				for id, p := range home {
					if id != g.Consumer && p.Contains(a) {
						c.Endpoints = append(c.Endpoints, a)
					}
				}
			}
			slices.SortFunc(c.Endpoints, netip.Addr.Compare)
			c.Endpoints = slices.Compact(c.Endpoints)
			byID[g.Consumer] = c
		}
		c.Guests = append(c.Guests, g.Addr)
	}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		w.Consumers = append(w.Consumers, *byID[id])
	}
	if len(w.Guests) == 0 {
		return world{}, nil // nothing to hold, whatever else changes
	}
	w.Closed = cfg.Networks()
	for _, list := range [][]netip.Prefix{w.Closed, w.Others} {
		slices.SortFunc(list, func(a, b netip.Prefix) int {
			return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
		})
	}
	w.Closed = slices.Compact(w.Closed)
	return w, nil
}
