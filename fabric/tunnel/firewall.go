package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The one nftables table of Rivulet, IPv4:
//
//	keep  (nat, postrouting, before everybody's masquerade): pod addresses stay as
//	      they are between pods and peers. flannel and kube-proxy would masquerade
//	      what leaves the pod CIDR; the first NAT rule that speaks for a connection
//	      wins, and ours maps a prefix to itself.
//	guard (filter, prerouting, after conntrack, before everybody's DNAT): a peer
//	      reaches our pods, the control port and the port that measures paths, nothing
//	      else of the machine: no kubelet, no API server, no NodePort.
const tableName = "rivulet"

const (
	keepPriority  = 90   // srcnat is 100
	guardPriority = -150 // conntrack is -200, dstnat -100
)

// setFirewall replaces the table in one transaction.
func setFirewall(cfg Config) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("tunnel: nftables: %w", err)
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyIPv4}
	c.AddTable(table) // so that deleting it cannot fail
	c.DelTable(table)
	c.AddTable(table)

	keep := c.AddChain(&nftables.Chain{Name: "keep", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(keepPriority)})
	pods := cfg.PodCIDR.Masked()
	c.AddRule(&nftables.Rule{Table: table, Chain: keep,
		Exprs: join(oifname(cfg.Interface), source(pods), same(pods))})
	for _, p := range cfg.Peers {
		remote := p.Remote.Masked()
		c.AddRule(&nftables.Rule{Table: table, Chain: keep, Exprs: join(source(remote), destination(pods), same(remote))})
	}

	guard := c.AddChain(&nftables.Chain{Name: "guard", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(guardPriority)})
	for _, r := range [][]expr.Any{
		join(not(iifname(cfg.Interface)), accept),
		join(established, accept),
		join(destination(netip.PrefixFrom(cfg.Address, 32)), tcpPort(cfg.ControlPort), accept),
		join(destination(netip.PrefixFrom(cfg.Address, 32)), udpPort(probePort), accept),
		join(echoRequest, accept),
		join(notForOne, drop),
		join(not(destination(pods)), drop),
	} {
		c.AddRule(&nftables.Rule{Table: table, Chain: guard, Exprs: r})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("tunnel: nftables: %w: does this kernel have nf_tables, nft_nat and nft_fib?", err)
	}
	return nil
}

func clearFirewall() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("tunnel: nftables: %w", err)
	}
	c.DelTable(&nftables.Table{Name: tableName, Family: nftables.TableFamilyIPv4})
	if err := c.Flush(); err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("tunnel: nftables: %w", err)
	}
	return nil
}

func join(parts ...[]expr.Any) (out []expr.Any) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

var (
	accept = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	drop   = []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}

	// established also takes related: ICMP errors about our own connections.
	established = []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED),
			Xor:  binaryutil.NativeEndian.PutUint32(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
	echoRequest = join(protocol(unix.IPPROTO_ICMP), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{8}},
	})
	// notForOne is what is for this host, whichever of its addresses, or for many.
	notForOne = []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_UNICAST)},
	}
)

func ifname(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, 16)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded},
	}
}

func iifname(name string) []expr.Any { return ifname(expr.MetaKeyIIFNAME, name) }
func oifname(name string) []expr.Any { return ifname(expr.MetaKeyOIFNAME, name) }

// not turns the last comparison round.
func not(e []expr.Any) []expr.Any {
	cmp := *e[len(e)-1].(*expr.Cmp)
	cmp.Op = expr.CmpOpNeq
	return append(e[:len(e)-1:len(e)-1], &cmp)
}

func source(p netip.Prefix) []expr.Any      { return address(12, p) }
func destination(p netip.Prefix) []expr.Any { return address(16, p) }

func address(offset uint32, p netip.Prefix) []expr.Any {
	mask := make([]byte, 4)
	binary.BigEndian.PutUint32(mask, ^uint32(0)<<(32-p.Bits()))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

func protocol(proto byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
	}
}

func tcpPort(port uint16) []expr.Any { return toPort(unix.IPPROTO_TCP, port) }
func udpPort(port uint16) []expr.Any { return toPort(unix.IPPROTO_UDP, port) }

func toPort(proto byte, port uint16) []expr.Any {
	return join(protocol(proto), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	})
}

// same is the source NAT of a prefix to itself, host bits kept: it changes
// nothing and speaks for the connection.
func same(p netip.Prefix) []expr.Any {
	first := p.Masked().Addr().As4()
	last := binary.BigEndian.Uint32(first[:]) | ^(^uint32(0) << (32 - p.Bits()))
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: first[:]},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint32(last)},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegAddrMax: 2, Prefix: true},
	}
}
