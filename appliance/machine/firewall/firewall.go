// Package firewall keeps what is the cluster's own out of the LAN's reach. The API server
// and the kubelet listen on all addresses, and Linux takes a packet for any of its
// addresses on any interface: without a wall a machine on the LAN reaches both, and,
// with a route through the device, the node's own address, pods and Services. With it
// the LAN sees the control port, the tunnel's port and mDNS, and what the user opens:
// Services of type LoadBalancer or NodePort, ports of the host.
//
//	LAN ─▶ eth0 ─▶ before (prerouting): new connections to pods, Services, node addresses ─▶ dropped
//	            ─▶ input: new connections to ports of the cluster that nobody's DNAT leads to ─▶ dropped
//	lo, cni0, riv0 ─▶ pass; what a peer may do in the tunnel is the tunnel's to say
//
// It reads nothing and alone writes the nftables tables "rivulet-wall", IPv4 and IPv6,
// each in one transaction. They stay when the supervisor ends, as pods do, and are made
// anew when somebody has removed them. A kernel or a rule set that does not let it
// shows as the problem "wall"; everything else goes on.
package firewall

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/google/nftables"

	"rivulet/fabric/nft"
)

// Table is the name of both tables.
const Table = "rivulet-wall"

// look is how often somebody's `nft flush ruleset` is made up for.
const look = 15 * time.Second

const (
	beforePriority = -150 // conntrack is -200, everybody's DNAT -100
	inputPriority  = -5   // before the filters of others
)

// Config is what the wall is around.
type Config struct {
	// Own are the interfaces that lead to pods, peers and the device itself.
	Own []string
	// Networks are those of pods, Services and nodes, IPv4.
	Networks []netip.Prefix
	// Ports are TCP ports that are open on all addresses and for the device alone.
	Ports []uint16
	// Report is told after each look; nil is well.
	Report func(error)
	Log    *slog.Logger
	// netns is for tests: the namespace to work in.
	netns int
}

// Run keeps the wall until ctx ends, and leaves it standing. ready is called when it
// stands for the first time, or cannot.
func Run(ctx context.Context, cfg Config, ready func()) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	standing := false
	for {
		var err error
		if !standing || !cfg.stands() {
			if standing {
				cfg.Log.Warn("the wall was removed by somebody, making it again")
			}
			err = cfg.build()
			standing = err == nil
		}
		cfg.Report(err)
		if ready != nil {
			ready()
			ready = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

var families = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}

// stands reports whether both tables are there.
func (cfg Config) stands() bool {
	n, err := nft.Stand(cfg.netns, Table, families...)
	return err != nil || n == len(families) // what cannot be asked is asked again later
}

// build replaces both tables.
func (cfg Config) build() error {
	for _, f := range families {
		if err := cfg.table(f); err != nil {
			return err
		}
	}
	return nil
}

func (cfg Config) table(family nftables.TableFamily) error {
	c, err := nft.Open(cfg.netns)
	if err != nil {
		return fmt.Errorf("wall: nftables: %w; see that the kernel has nf_tables", err)
	}
	t := &nftables.Table{Name: Table, Family: family}
	nft.Replace(c, t)
	if family == nftables.TableFamilyIPv4 {
		before := nft.Base(c, t, "before", nftables.ChainHookPrerouting, beforePriority)
		cfg.passOwn(c, before)
		for _, n := range cfg.Networks {
			nft.Rule(c, before, nft.Within(nft.Destination, n), nft.Drop)
		}
	}
	input := nft.Base(c, t, "input", nftables.ChainHookInput, inputPriority)
	cfg.passOwn(c, input)
	// A Service that the user made may lead to a port of the host.
	nft.Rule(c, input, nft.DestinationTranslated, nft.Accept)
	for _, p := range cfg.Ports {
		nft.Rule(c, input, nft.TCPPort(p), nft.Drop)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("wall: nftables: %w; see that the kernel has nf_tables and nft_ct", err)
	}
	return nil
}

func (cfg Config) passOwn(c *nftables.Conn, chain *nftables.Chain) {
	for _, name := range cfg.Own {
		nft.Rule(c, chain, nft.FromInterface(name), nft.Accept)
	}
	nft.Rule(c, chain, nft.Established, nft.Accept)
}
