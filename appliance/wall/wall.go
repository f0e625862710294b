// Package wall keeps what is the cluster's own out of the LAN's reach. The API server
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
package wall

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
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

func (cfg Config) conn() (*nftables.Conn, error) {
	if cfg.netns != 0 {
		return nftables.New(nftables.WithNetNSFd(cfg.netns))
	}
	return nftables.New()
}

var families = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}

// stands reports whether both tables are there.
func (cfg Config) stands() bool {
	c, err := cfg.conn()
	if err != nil {
		return true // asked again later
	}
	n := 0
	for _, f := range families {
		tables, err := c.ListTablesOfFamily(f)
		if err != nil {
			return true
		}
		for _, t := range tables {
			if t.Name == Table {
				n++
			}
		}
	}
	return n == len(families)
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
	c, err := cfg.conn()
	if err != nil {
		return fmt.Errorf("wall: nftables: %w; see that the kernel has nf_tables", err)
	}
	t := &nftables.Table{Name: Table, Family: family}
	c.AddTable(t) // so that deleting it cannot fail
	c.DelTable(t)
	c.AddTable(t)
	if family == nftables.TableFamilyIPv4 {
		before := c.AddChain(&nftables.Chain{Name: "before", Table: t, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(beforePriority)})
		cfg.passOwn(c, t, before)
		for _, n := range cfg.Networks {
			c.AddRule(&nftables.Rule{Table: t, Chain: before, Exprs: append(destination(n), drop)})
		}
	}
	input := c.AddChain(&nftables.Chain{Name: "input", Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityRef(inputPriority)})
	cfg.passOwn(c, t, input)
	// A Service that the user made may lead to a port of the host.
	c.AddRule(&nftables.Rule{Table: t, Chain: input, Exprs: append(conntrack(expr.CtKeySTATUS, ipsDstNAT), accept)})
	for _, p := range cfg.Ports {
		c.AddRule(&nftables.Rule{Table: t, Chain: input, Exprs: append(tcpPort(p), drop)})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("wall: nftables: %w; see that the kernel has nf_tables and nft_ct", err)
	}
	return nil
}

func (cfg Config) passOwn(c *nftables.Conn, t *nftables.Table, chain *nftables.Chain) {
	for _, name := range cfg.Own {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: append(iifname(name), accept)})
	}
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: append(conntrack(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept)})
}

// ipsDstNAT is IPS_DST_NAT of the kernel: the destination was another.
const ipsDstNAT = 1 << 5

var (
	accept = &expr.Verdict{Kind: expr.VerdictAccept}
	drop   = &expr.Verdict{Kind: expr.VerdictDrop}
)

func iifname(name string) []expr.Any {
	padded := make([]byte, 16)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded},
	}
}

// conntrack matches when one of the bits is set.
func conntrack(key expr.CtKey, bits uint32) []expr.Any {
	zero := binaryutil.NativeEndian.PutUint32(0)
	return []expr.Any{
		&expr.Ct{Register: 1, Key: key},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: zero},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: zero},
	}
}

func destination(p netip.Prefix) []expr.Any {
	mask := make([]byte, 4)
	binary.BigEndian.PutUint32(mask, ^uint32(0)<<(32-p.Bits()))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

func tcpPort(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}
