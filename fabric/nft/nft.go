// Package nft builds nftables tables: connections to the kernel, tables replaced in one transaction, and expressions
// that match or decide. The rules themselves are in their owners' packages (tunnel, firewall, isolation, netpol). It
// keeps no state.
package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Isolation is the name of the tables that isolate tenants. The interfaces of tenants have an alias that begins with
// TenantAlias, by which other processes recognize them.
const (
	Isolation   = "rivulet-twins"
	TenantAlias = "rivulet guest of "
)

// buffer bounds a transaction and its acknowledgements, bytes; the default of sockets is too small for a table of some
// thousand rules.
const buffer = 32 << 20

// Open makes a connection; netns is a network namespace, 0 the process's own.
func Open(netns int) (*nftables.Conn, error) {
	return open(netns, func(*netlink.Conn) error { return nil })
}

func open(netns int, opened func(*netlink.Conn) error) (*nftables.Conn, error) {
	options := []nftables.ConnOption{nftables.WithSockOptions(func(c *netlink.Conn) error {
		// Without the privilege to exceed the system's limit, that limit applies.
		_ = c.SetWriteBuffer(buffer)
		_ = c.SetReadBuffer(buffer)
		return opened(c)
	})}
	if netns != 0 {
		options = append(options, nftables.WithNetNSFd(netns))
	}
	return nftables.New(options...)
}

// Stand counts the families that have a table of the name.
func Stand(netns int, name string, families ...nftables.TableFamily) (int, error) {
	c, err := Open(netns)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, f := range families {
		tables, err := c.ListTablesOfFamily(f)
		if err != nil {
			return 0, err
		}
		for _, t := range tables {
			if t.Name == name {
				n++
			}
		}
	}
	return n, nil
}

// Remove adds the removal of the table to c's transaction, whether the table exists or not.
func Remove(c *nftables.Conn, t *nftables.Table) {
	c.AddTable(t) // so that the deletion cannot fail
	c.DelTable(t)
}

// Rule adds a rule of these parts to the end of the chain.
func Rule(c *nftables.Conn, chain *nftables.Chain, parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	c.AddRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: all})
}

// Base makes a chain of filter rules at a kernel hook.
func Base(c *nftables.Conn, t *nftables.Table, name string, hook *nftables.ChainHook, priority nftables.ChainPriority) *nftables.Chain {
	return c.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: hook, Priority: nftables.ChainPriorityRef(priority)})
}

var lastSetID atomic.Uint32

// NewSet makes a set without elements, to be added to a transaction. Its number is unique in this process; the
// library's own counter is not safe for concurrent transactions.
func NewSet(t *nftables.Table, name string, key nftables.SetDatatype) *nftables.Set {
	return &nftables.Set{ID: lastSetID.Add(1), Table: t, Name: name, KeyType: key}
}

// Offsets of addresses in an IPv4 header.
const (
	Source      = 12
	Destination = 16
)

// The verdicts. Accept ends the base chain only: other tables still decide.
var (
	Accept = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	Drop   = []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	Return = []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	// Refuse answers as for a closed port (ICMP port unreachable); IPv4 only.
	Refuse = []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3}}
)

// Jump returns when the chain has not decided.
func Jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// Established matches packets of an accepted connection, including errors about it.
var Established = Conntrack(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)

// Reply matches packets to the initiator of their connection.
var Reply = []expr.Any{
	&expr.Ct{Register: 1, Key: expr.CtKeyDIRECTION},
	&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1}},
}

// Related matches errors about existing connections.
var Related = Conntrack(expr.CtKeySTATE, expr.CtStateBitRELATED)

// DestinationTranslated matches packets after any DNAT (IPS_DST_NAT).
var DestinationTranslated = Conntrack(expr.CtKeySTATUS, 1<<5)

// Conntrack matches when one of the bits is set.
func Conntrack(key expr.CtKey, bits uint32) []expr.Any {
	zero := binaryutil.NativeEndian.PutUint32(0)
	return []expr.Any{
		&expr.Ct{Register: 1, Key: key},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: zero},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: zero},
	}
}

// AddressedTo matches packets that the sender addressed to a, also after kube-proxy's DNAT.
func AddressedTo(a netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeyDST, Direction: 0},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
	}
}

// Payload compares bytes of a header.
func Payload(base expr.PayloadBase, offset uint32, op expr.CmpOp, data []byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: uint32(len(data))},
		&expr.Cmp{Op: op, Register: 1, Data: data},
	}
}

// EtherType compares the type of a frame (unix.ETH_P_*).
func EtherType(op expr.CmpOp, t uint16) []expr.Any {
	return Payload(expr.PayloadBaseLLHeader, 12, op, binaryutil.BigEndian.PutUint16(t))
}

// In matches an address (Source or Destination) in a set.
func In(offset uint32, set string) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Lookup{SourceRegister: 1, SetName: set},
	}
}

// Within matches an address (Source or Destination) in a prefix.
func Within(offset uint32, p netip.Prefix) []expr.Any {
	mask := make([]byte, 4)
	binary.BigEndian.PutUint32(mask, ^uint32(0)<<(32-p.Bits()))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

func Protocol(proto byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
	}
}

// ToPorts matches a destination port between the two, both included.
func ToPorts(low, high uint16) []expr.Any {
	load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	if low == high {
		return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(low)}}
	}
	return []expr.Any{load, &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: binaryutil.BigEndian.PutUint16(low), ToData: binaryutil.BigEndian.PutUint16(high)}}
}

func TCPPort(port uint16) []expr.Any {
	return append(Protocol(unix.IPPROTO_TCP), ToPorts(port, port)...)
}

func UDPPort(port uint16) []expr.Any {
	return append(Protocol(unix.IPPROTO_UDP), ToPorts(port, port)...)
}

// FromInterface matches the input interface.
func FromInterface(name string) []expr.Any { return named(expr.MetaKeyIIFNAME, name) }

// ToInterface matches the output interface.
func ToInterface(name string) []expr.Any { return named(expr.MetaKeyOIFNAME, name) }

func named(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: InterfaceKey(name)},
	}
}

// PacketType matches a packet by how many it is for: unix.PACKET_BROADCAST and so on.
func PacketType(t byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPKTTYPE, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{t}}}
}

// ToPrefix is the destination NAT into a prefix, host bits kept.
func ToPrefix(p netip.Prefix) []expr.Any { return natPrefix(expr.NATTypeDestNAT, p) }

// FromPrefix is the source NAT into a prefix, host bits kept.
func FromPrefix(p netip.Prefix) []expr.Any { return natPrefix(expr.NATTypeSourceNAT, p) }

// FromAddress is the source NAT to one address.
func FromAddress(a netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: a.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
	}
}

func natPrefix(kind expr.NATType, p netip.Prefix) []expr.Any {
	first := p.Masked().Addr().As4()
	last := binary.BigEndian.Uint32(first[:]) | ^(^uint32(0) << (32 - p.Bits()))
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: first[:]},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint32(last)},
		&expr.NAT{Type: kind, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegAddrMax: 2, Prefix: true},
	}
}

// Not negates an expression that ends in a comparison for equality.
func Not(e []expr.Any) []expr.Any {
	cmp := *e[len(e)-1].(*expr.Cmp)
	cmp.Op = expr.CmpOpNeq
	return append(e[:len(e)-1:len(e)-1], &cmp)
}

// InterfaceKey is an interface's name in the form of rules and sets.
func InterfaceKey(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

// Generation is the number of the kernel's nftables rules in the process's own network namespace: each change of any of
// them makes another.
func Generation() (uint32, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, fmt.Errorf("nft: %w", err)
	}
	defer c.Close()
	const id = 1 // NFTA_GEN_ID
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, fmt.Errorf("nft: the rules' generation: %w", err)
	}
	for _, a := range answers {
		if len(a.Data) < 4 {
			continue
		}
		attributes, err := netlink.UnmarshalAttributes(a.Data[4:])
		if err != nil {
			return 0, fmt.Errorf("nft: the rules' generation: %w", err)
		}
		for _, at := range attributes {
			if at.Type == id && len(at.Data) == 4 {
				return binary.BigEndian.Uint32(at.Data), nil
			}
		}
	}
	return 0, errors.New("nft: the kernel does not tell the rules' generation")
}
