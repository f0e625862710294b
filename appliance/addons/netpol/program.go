package netpol

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"rivulet/fabric/nft"
	"rivulet/offload/networkpolicy"
	"rivulet/offload/nodeagent/podnet"
)

// A Plan as nftables rules (nft.Program):
//
// 	egress   (base)  established, self: accept; saddr vmap @held-out ─▶ a class of pods
// 	ingress  (base)  established, self: accept; daddr vmap @held-in  ─▶ a class of pods
// 	class            jump to each policy's chain; drop
// 	policy           one accept for each rule and port

const (
	heldIn, heldOut, self = "held-in", "held-out", "self"
	heldPorts, ownAddress = "held", "own"
)

var (
	pairType   = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)
	socketType = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	portType   = nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr)
)

// Priorities: after isolation (-4), before the filters of others. The order does not change what passes, because each
// only drops.
const egressPriority, ingressPriority = -3, -2

// The 32-bit registers for a key of several parts; register 1 is the first four of them.
const part1, part2, part4 = 9, 10, 12

var protocols = map[corev1.Protocol]byte{corev1.ProtocolTCP: unix.IPPROTO_TCP, corev1.ProtocolUDP: unix.IPPROTO_UDP, corev1.ProtocolSCTP: unix.IPPROTO_SCTP}

var families = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyBridge}

// write converts a plan to the two tables.
func write(plan networkpolicy.Plan, local []podnet.Pod) []nft.Program {
	if plan.Empty() {
		return nil
	}
	decide := nft.Program{Family: nftables.TableFamilyIPv4, Sets: map[string]nft.Set{}, Chains: map[string]nft.Chain{}, Base: decides}
	for name, policies := range plan.Classes {
		decide.Chains[name] = class(policies)
	}
	for name, rules := range plan.Chains {
		decide.Chains[name] = policyChain(name, rules)
	}
	decide.Sets[heldIn] = verdicts(plan.Ingress)
	decide.Sets[heldOut] = verdicts(plan.Egress)
	selves := nft.MakeSet(pairType)
	for _, held := range []map[netip.Addr]string{plan.Ingress, plan.Egress} {
		for a := range held {
			selves.Add(append(a.AsSlice(), a.AsSlice()...))
		}
	}
	decide.Sets[self] = selves
	for name, addrs := range plan.Sets.Addrs {
		s := nft.MakeSet(nftables.TypeIPAddr)
		for _, a := range addrs {
			s.Add(a.AsSlice())
		}
		decide.Sets[name] = s
	}
	for name, all := range plan.Sets.Ranges {
		s := nft.MakeSet(nftables.TypeIPAddr)
		s.Ranges = true
		for _, r := range all {
			s.Add(r.First.AsSlice())
			if end := r.Last.Next(); end.Is4() { // there is none after the last
				s.Elements[string(end.AsSlice())+"end"] = nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true}
			}
		}
		decide.Sets[name] = s
	}
	for name, all := range plan.Sets.Sockets {
		s := nft.MakeSet(socketType)
		for _, k := range all {
			s.Add(socketKey(k))
		}
		decide.Sets[name] = s
	}

	honest := nft.Program{Family: nftables.TableFamilyBridge, Sets: map[string]nft.Set{}, Base: keepsHonest}
	ports, own := nft.MakeSet(nftables.TypeIFName), nft.MakeSet(portType)
	for _, p := range local {
		if plan.Ingress[p.Addr] != "" || plan.Egress[p.Addr] != "" {
			ports.Add(nft.InterfaceKey(p.Veth))
			own.Add(append(nft.InterfaceKey(p.Veth), p.Addr.AsSlice()...))
		}
	}
	honest.Sets[heldPorts], honest.Sets[ownAddress] = ports, own
	return []nft.Program{decide, honest}
}

func class(policies []string) nft.Chain {
	return func(rule func(parts ...[]expr.Any)) {
		for _, policy := range policies {
			rule(nft.Jump(policy))
		}
		rule(nft.Drop)
	}
}

func policyChain(name string, rules []networkpolicy.Rule) nft.Chain {
	otherEnd := uint32(nft.Source)
	if strings.HasPrefix(name, networkpolicy.OutPrefix) {
		otherEnd = nft.Destination
	}
	return func(rule func(parts ...[]expr.Any)) {
		for _, r := range rules {
			rule(allow(r, otherEnd))
		}
	}
}

func verdicts(classes map[netip.Addr]string) nft.Set {
	s := nft.MakeSet(nftables.TypeIPAddr)
	s.Verdicts = true
	for a, class := range classes {
		s.Lead(a.AsSlice(), expr.VerdictGoto, class)
	}
	return s
}

// socketKey has each part in four bytes, as registers do.
func socketKey(s networkpolicy.Socket) []byte {
	key := append(s.Addr.AsSlice(), protocols[s.Protocol], 0, 0, 0)
	return append(binary.BigEndian.AppendUint16(key, s.Port), 0, 0)
}

func load(register, offset, length uint32, base expr.PayloadBase) expr.Any {
	return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length}
}

// decides writes the base chains of the IPv4 table. The destination is that after Services were resolved, the source
// that before masquerading.
func decides(c *nftables.Conn, t *nftables.Table) {
	toItself := []expr.Any{load(1, nft.Source, 4, expr.PayloadBaseNetworkHeader), load(part1, nft.Destination, 4, expr.PayloadBaseNetworkHeader),
		&expr.Lookup{SourceRegister: 1, SetName: self}}
	for _, side := range []struct {
		name     string
		priority nftables.ChainPriority
		offset   uint32
		held     string
	}{{"egress", egressPriority, nft.Source, heldOut}, {"ingress", ingressPriority, nft.Destination, heldIn}} {
		chain := nft.Base(c, t, side.name, nftables.ChainHookForward, side.priority)
		nft.Rule(c, chain, nft.Established, nft.Accept)
		nft.Rule(c, chain, toItself, nft.Accept)
		nft.Rule(c, chain, []expr.Any{load(1, side.offset, 4, expr.PayloadBaseNetworkHeader),
			&expr.Lookup{SourceRegister: 1, SetName: side.held, DestRegister: 0, IsDestRegSet: true}})
	}
}

// keepsHonest writes the base chains of the bridge's table: selected pods send from their own address only, and neither
// send nor receive what the IPv4 table does not filter.
func keepsHonest(c *nftables.Conn, t *nftables.Table) {
	held := func(key expr.MetaKey) []expr.Any {
		return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: heldPorts}}
	}
	own := []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, load(part4, nft.Source, 4, expr.PayloadBaseNetworkHeader),
		&expr.Lookup{SourceRegister: 1, SetName: ownAddress}}
	in := nft.Base(c, t, "in", nftables.ChainHookPrerouting, -299)
	nft.Rule(c, in, nft.EtherType(expr.CmpOpEq, unix.ETH_P_ARP), nft.Accept)
	nft.Rule(c, in, nft.EtherType(expr.CmpOpEq, unix.ETH_P_IP), own, nft.Accept)
	nft.Rule(c, in, held(expr.MetaKeyIIFNAME), nft.Drop)
	out := nft.Base(c, t, "out", nftables.ChainHookForward, -299)
	nft.Rule(c, out, nft.EtherType(expr.CmpOpEq, unix.ETH_P_ARP), nft.Accept)
	nft.Rule(c, out, nft.EtherType(expr.CmpOpEq, unix.ETH_P_IP), nft.Accept)
	nft.Rule(c, out, held(expr.MetaKeyOIFNAME), nft.Drop)
}

// allow is one rule of a policy's chain. For egress the other end is the destination.
func allow(r networkpolicy.Rule, otherEnd uint32) []expr.Any {
	var all []expr.Any
	if r.Peers != "" {
		all = append(all, load(1, otherEnd, 4, expr.PayloadBaseNetworkHeader), &expr.Lookup{SourceRegister: 1, SetName: r.Peers})
	}
	if r.Sockets != "" {
		all = append(all, load(1, nft.Destination, 4, expr.PayloadBaseNetworkHeader), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: part1},
			load(part2, 2, 2, expr.PayloadBaseTransportHeader), &expr.Lookup{SourceRegister: 1, SetName: r.Sockets})
	}
	if r.Protocol != "" {
		all = append(all, nft.Protocol(protocols[r.Protocol])...)
		if r.Low != 0 {
			all = append(all, nft.ToPorts(r.Low, r.High)...)
		}
	}
	return append(all, nft.Accept...)
}
