// Package firewall closes the cluster's ports and networks to the LAN (docs/design/security.md): Linux accepts packets
// for any of its addresses on any interface. Open are the control port, the tunnel's port, mDNS and what the user
// opens.
//
//	LAN ─▶ eth0 ─▶ before (prerouting): to an address of eth0 ─▶ pass; new connections to pods,
//	               Services, node addresses ─▶ dropped
//	            ─▶ input: new connections to ports of the cluster without DNAT ─▶ dropped
//	lo, cni0, riv0 ─▶ pass
//
// It reads nothing and alone writes the nftables tables "rivulet-firewall", each in one transaction. Restart: they stay
// when the supervisor ends; changes by others are reverted. Failure: the problem "host-firewall".
package firewall

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"rivulet/appliance/health"
	"rivulet/fabric/nft"
)

// Table is the name of both tables.
const Table = "rivulet-firewall"

const (
	beforePriority = -150 // after conntrack (-200), before DNAT (-100)
	inputPriority  = -5   // before the filters of others
)

// Config is the input of Run.
type Config struct {
	// Own are the interfaces to pods, peers and the device itself.
	Own []string
	// Networks are those of pods, Services and nodes, IPv4.
	Networks []netip.Prefix
	// Ports are TCP ports that are open on all addresses, for the device only.
	Ports []uint16
	// Guard detects changes of the tables by others.
	Guard  *nft.Guard
	Health *health.Tracker
}

// Run maintains the host firewall until ctx ends, and leaves it in force. It calls ready after the first write, or its
// failure.
func Run(ctx context.Context, cfg Config, ready func()) {
	tables := cfg.Guard.Tables(Table, nftables.TableFamilyIPv4, nftables.TableFamilyIPv6)
	programs := []nft.Program{cfg.program(nftables.TableFamilyIPv4), cfg.program(nftables.TableFamilyIPv6)}
	for {
		_, err := tables.Apply(programs)
		if err != nil {
			err = fmt.Errorf("host firewall: nftables: %w; see that the kernel has nf_tables, nft_ct and nft_fib", err)
		}
		cfg.Health.Report(health.HostFirewall, err)
		if ready != nil {
			ready()
			ready = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-tables.Changed():
		}
	}
}

func (cfg Config) program(family nftables.TableFamily) nft.Program {
	return nft.Program{Family: family, Base: func(c *nftables.Conn, t *nftables.Table) {
		if family == nftables.TableFamilyIPv4 {
			before := nft.Base(c, t, "before", nftables.ChainHookPrerouting, beforePriority)
			cfg.passOwn(c, before)
			nft.Rule(c, before, ofTheLink, nft.Accept)
			for _, n := range cfg.Networks {
				nft.Rule(c, before, nft.Within(nft.Destination, n), nft.Drop)
			}
		}
		input := nft.Base(c, t, "input", nftables.ChainHookInput, inputPriority)
		cfg.passOwn(c, input)
		// A Service of the user may lead to a port of the host.
		nft.Rule(c, input, nft.DestinationTranslated, nft.Accept)
		for _, p := range cfg.Ports {
			nft.Rule(c, input, nft.TCPPort(p), nft.Drop)
		}
	}}
}

// ofTheLink matches packets for an address of their input interface, or for all hosts on that link: a LAN may overlap
// the cluster's networks, and the device then has such an address.
var ofTheLink = []expr.Any{
	&expr.Fib{Register: 1, FlagDADDR: true, FlagIIF: true, ResultADDRTYPE: true},
	&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_UNICAST)},
}

func (cfg Config) passOwn(c *nftables.Conn, chain *nftables.Chain) {
	for _, name := range cfg.Own {
		nft.Rule(c, chain, nft.FromInterface(name), nft.Accept)
	}
	nft.Rule(c, chain, nft.Established, nft.Accept)
}
