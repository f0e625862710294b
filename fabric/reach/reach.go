// Package reach is the nftables table that decides which of this cluster's pods a packet from the tunnel reaches. What
// no rule names is dropped.
//
//	in    (filter, prerouting, after conntrack and the tunnel's guard)
//	      answers ─▶ the tunnel's address (the guard decides) ─▶ from a pod of this cluster
//	      that runs at a peer ─▶ to a tenant (offload/nodeagent/isolation decides) ─▶ opened ─▶ drop
//	back  (filter, forward): answers to connections that a peer has begun pass as long as
//	      these do, so that a connection ends with its permission; from peer to peer only
//	      between pods of this cluster
//	through (nat, prerouting), by (nat, postrouting): such pods have addresses of this cluster's
//	      pod network for each other
//
// Rules match a connection's direction and not its state: each packet of a connection that a peer has begun is checked
// against the sets again, so nothing has to be removed from the connection table when a permission ends.
//
// The tunnel's process creates the table, empty, before its interface is up and whenever there is none (Ensure); the
// supervisor alone fills it (Program), and it stays when either ends. Nothing is stored outside the kernel's table.
// Without nf_tables in the kernel there is no tunnel.
package reach

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"rivulet/fabric/nft"
)

const Table = "rivulet-reach"

const (
	inPriority   = -149 // the tunnel's guard is -150
	backPriority = -5
	// Before kube-proxy's and all masquerading.
	throughPriority, byPriority = -101, 80
)

// Rules are the permissions of incoming packets.
type Rules struct {
	// Interface is the tunnel's, Own its address.
	Interface string
	Own       netip.Addr
	// Ours are pods of this cluster that run at peers, as this cluster sees them.
	Ours []netip.Addr
	// Whole are prefixes in which all pods are this cluster's.
	Whole []netip.Prefix
	// Tenants are pods of other clusters that run here.
	Tenants []netip.Addr
	// Open are the permissions that the owner has given.
	Open []Grant
	// Nodes are prefixes behind other nodes of this cluster. What comes from there is this cluster's own, or was let in by
	// the node with the tunnel to that peer.
	Nodes []netip.Prefix
	// Through are further addresses of Ours, in this cluster's pod network, by which these reach each other through this
	// cluster.
	Through map[netip.Addr]netip.Addr
}

// Grant opens pods, or ports of pods, to senders of a prefix.
type Grant struct {
	From  netip.Prefix
	Pods  []netip.Addr
	Ports []Port
}

// Port is a port of a pod; Protocol is that of IP.
type Port struct {
	Addr     netip.Addr
	Protocol byte
	Port     uint16
}

// Compare orders ports.
func (p Port) Compare(q Port) int {
	return cmp.Or(p.Addr.Compare(q.Addr), cmp.Compare(p.Protocol, q.Protocol), cmp.Compare(p.Port, q.Port))
}

const Family = nftables.TableFamilyIPv4

// Ensure creates the table, with other nodes of this cluster only, if there is none, in the process's own network
// namespace.
func Ensure(iface string, own netip.Addr, nodes ...netip.Prefix) error {
	c, err := nft.Open(0)
	if err == nil {
		t := &nftables.Table{Name: Table, Family: Family}
		c.CreateTable(t)
		err = nft.Fill(c, t, Program(Rules{Interface: iface, Own: own, Nodes: nodes}))
	}
	if err == nil {
		err = c.Flush()
	}
	if err == nil || errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return Fault(err)
}

// Fault is the error of a table that cannot be written, with a cure.
func Fault(err error) error {
	return fmt.Errorf("reach: nftables: %w; see that the kernel has NF_TABLES_IPV4 and NFT_CT", err)
}

// Program is the content of the table. It is written as a whole each time.
func Program(r Rules) nft.Program {
	through, by := nft.MakeSet(nftables.TypeIPAddr), nft.MakeSet(nftables.TypeIPAddr)
	through.Values, by.Values = nftables.TypeIPAddr, nftables.TypeIPAddr
	for pod, a := range r.Through {
		through.Map(a.AsSlice(), pod.AsSlice())
		by.Map(pod.AsSlice(), a.AsSlice())
	}
	p := nft.Program{Family: Family, Sets: map[string]nft.Set{oursSet: addresses(r.Ours), tenantsSet: addresses(r.Tenants), throughMap: through, byMap: by}}
	pods, ports := func(i int) string { return fmt.Sprint("pods-", i) }, func(i int) string { return fmt.Sprint("ports-", i) }
	for i, g := range r.Open {
		p.Sets[pods(i)], p.Sets[ports(i)] = addresses(g.Pods), sockets(g.Ports)
	}
	p.Base = func(c *nftables.Conn, t *nftables.Table) {
		in := nft.Base(c, t, "in", nftables.ChainHookPrerouting, inPriority)
		back := nft.Base(c, t, "back", nftables.ChainHookForward, backPriority)
		replies, between := c.AddChain(&nftables.Chain{Name: "replies", Table: t}), c.AddChain(&nftables.Chain{Name: "between", Table: t})

		nft.Rule(c, in, nft.Not(nft.FromInterface(r.Interface)), nft.Accept)
		nft.Rule(c, in, nft.Reply, nft.Accept)
		nft.Rule(c, in, nft.Related, nft.Accept)
		if r.Own.IsValid() {
			nft.Rule(c, in, nft.Within(nft.Destination, netip.PrefixFrom(r.Own, 32)), nft.Accept)
		}
		for _, n := range r.Nodes {
			nft.Rule(c, in, nft.Within(nft.Source, n), nft.Accept)
			nft.Rule(c, between, nft.Within(nft.Destination, n), nft.Accept) // chain in has decided
			nft.Rule(c, between, nft.Within(nft.Source, n), nft.Return)
			nft.Rule(c, replies, nft.Within(nft.Destination, n), nft.Accept)
		}
		nft.Rule(c, back, nft.FromInterface(r.Interface), nft.ToInterface(r.Interface), nft.Jump(between.Name))
		nft.Rule(c, between, nft.In(nft.Source, oursSet), nft.In(nft.Destination, oursSet), nft.Accept)
		nft.Rule(c, between, nft.Related, nft.Accept)
		nft.Rule(c, between, nft.Drop)
		nft.Rule(c, back, nft.ToInterface(r.Interface), nft.Reply, nft.Jump(replies.Name))
		nft.Rule(c, back, nft.ToInterface(r.Interface), fresh, nft.Protocol(unix.IPPROTO_TCP), noSYN, nft.Drop)
		nft.Rule(c, replies, nft.Related, nft.Accept)
		relay(c, t, r.Interface)

		for _, side := range []struct {
			chain         *nftables.Chain
			remote, local uint32 // offsets of addresses
			portAt        uint32
		}{{in, nft.Source, nft.Destination, 2}, {replies, nft.Destination, nft.Source, 0}} {
			nft.Rule(c, side.chain, nft.In(side.remote, oursSet), nft.Accept)
			for _, p := range r.Whole {
				nft.Rule(c, side.chain, nft.Within(side.remote, p), nft.Accept)
			}
			nft.Rule(c, side.chain, nft.In(side.local, tenantsSet), nft.Accept)
			for i, g := range r.Open {
				nft.Rule(c, side.chain, nft.Within(side.remote, g.From), nft.In(side.local, pods(i)), nft.Accept)
				nft.Rule(c, side.chain, nft.Within(side.remote, g.From), at(ports(i), side.local, side.portAt), nft.Accept)
			}
			nft.Rule(c, side.chain, nft.Drop)
		}
	}
	return p
}

const oursSet, tenantsSet, throughMap, byMap = "ours", "tenants", "through", "by"

// relay writes the chains that give pods at two peers addresses for each other. Both peers see the other's pod as one of
// this cluster.
func relay(c *nftables.Conn, t *nftables.Table, iface string) {
	chain := func(name string, hook *nftables.ChainHook, priority nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityRef(priority)})
	}
	find := func(address uint32, set string, nat expr.NATType) []expr.Any {
		return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: address, Len: 4},
			&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: set},
			&expr.NAT{Type: nat, Family: unix.NFPROTO_IPV4, RegAddrMin: 1}}
	}
	through := chain("through", nftables.ChainHookPrerouting, throughPriority)
	nft.Rule(c, through, nft.FromInterface(iface), nft.In(nft.Source, oursSet), find(nft.Destination, throughMap, expr.NATTypeDestNAT))
	by := chain("by", nftables.ChainHookPostrouting, byPriority)
	nft.Rule(c, by, nft.ToInterface(iface), nft.DestinationTranslated, nft.In(nft.Destination, oursSet), find(nft.Source, byMap, expr.NATTypeSourceNAT))
}

// Standing returns the addresses of Ours in force, which an earlier process may have written.
func Standing(netns int) ([]netip.Addr, error) {
	if n, err := nft.Stand(netns, Table, Family); err != nil || n == 0 {
		return nil, err
	}
	c, err := nft.Open(netns)
	if err != nil {
		return nil, fmt.Errorf("reach: %w", err)
	}
	s, err := c.GetSetByName(&nftables.Table{Name: Table, Family: Family}, oursSet)
	if err != nil {
		return nil, fmt.Errorf("reach: %w", err)
	}
	elements, err := c.GetSetElements(s)
	if err != nil {
		return nil, fmt.Errorf("reach: %w", err)
	}
	var out []netip.Addr
	for _, e := range elements {
		if a, ok := netip.AddrFromSlice(e.Key); ok {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out, nil
}

func addresses(all []netip.Addr) nft.Set {
	s := nft.MakeSet(nftables.TypeIPAddr)
	for _, a := range all {
		s.Add(a.AsSlice())
	}
	return s
}

var socketType = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)

func sockets(all []Port) nft.Set {
	s := nft.MakeSet(socketType)
	for _, p := range all {
		key := append(p.Addr.AsSlice(), p.Protocol, 0, 0, 0)
		s.Add(append(append(key, binaryutil.BigEndian.PutUint16(p.Port)...), 0, 0))
	}
	return s
}

// at matches an address, protocol and port in a set of sockets. Registers after the first have 4 bytes.
func at(set string, address, port uint32) []expr.Any {
	const second, third = 9, 10
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: address, Len: 4},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: second},
		&expr.Payload{DestRegister: third, Base: expr.PayloadBaseTransportHeader, Offset: port, Len: 2},
		&expr.Lookup{SourceRegister: 1, SetName: set},
	}
}

var (
	// fresh and noSYN match a packet in the middle of a connection that conntrack has forgotten: a connection that has
	// ended here cannot begin again from this side.
	fresh = nft.Conntrack(expr.CtKeySTATE, expr.CtStateBitNEW)
	noSYN = []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{2}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0}},
	}
)
