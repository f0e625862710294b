package isolation

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"rivulet/fabric/ipam"
	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
)

// Table is the name of both tables.
const Table = nft.Isolation

const priority = -4 // before the filters of others

// tables are the kernel's tables.
type tables struct {
	*nft.Tables
	written map[string]nft.Set // the present sets of consumers, by name
}

func newTables(keeper *nft.Guard) *tables {
	return &tables{Tables: keeper.Tables(Table, nftables.TableFamilyIPv4, nftables.TableFamilyBridge)}
}

// there reports whether both tables exist, whoever made them.
func (k *tables) there() bool {
	n, err := nft.Stand(k.NetNS, k.Name, k.Families...)
	return err == nil && n == len(k.Families)
}

// build writes w into the tables. Everything but endpoints is one transaction for each table, with no data from
// consumers in it; the endpoints of each consumer are a further one, and so are its Services. A failed one is in lost,
// and its set stays unchanged: the consumer reaches less, never more.
func (k *tables) build(w world) (lost map[peer.ID]error, err error) {
	if len(w.Tenants) == 0 {
		k.written = nil
		if err := k.Clear(); err != nil {
			return nil, fault(err)
		}
		return nil, nil
	}
	all, kept, of := map[string]nft.Set{}, map[string]nft.Set{}, map[string]peer.ID{}
	for _, c := range w.Consumers {
		for name, list := range map[string][]netip.Addr{endpointsOf(c.ID): c.Endpoints, servicesOf(c.ID): c.Services} {
			all[name], kept[name], of[name] = addresses(list), nft.MakeSet(nftables.TypeIPAddr), c.ID
			if stands, ok := k.written[name]; ok {
				kept[name] = stands
			}
		}
	}
	if !k.Known() {
		// All at once if possible, so that nothing is missing in between.
		if _, err := k.Apply(write(w, all)); err == nil {
			k.written = all
			return nil, nil
		}
		for name := range kept {
			kept[name] = nft.MakeSet(nftables.TypeIPAddr)
		}
	}
	k.written = kept
	programs := write(w, kept)
	if _, err := k.Apply(programs); err != nil {
		k.written = nil
		return nil, fault(err)
	}
	lost = map[peer.ID]error{}
	for name, want := range all {
		if same(want, kept[name]) {
			continue
		}
		next := slices.Clone(programs)
		next[0].Sets = maps.Clone(next[0].Sets)
		next[0].Sets[name] = want
		if _, err := k.Update(next); err != nil {
			lost[of[name]] = fault(err)
			continue
		}
		programs, kept[name] = next, want
	}
	return lost, nil
}

func same(a, b nft.Set) bool {
	if len(a.Elements) != len(b.Elements) {
		return false
	}
	for key := range a.Elements {
		if _, ok := b.Elements[key]; !ok {
			return false
		}
	}
	return true
}

func endpointsOf(id peer.ID) string { return "endpoints-" + string(id) }
func servicesOf(id peer.ID) string  { return "services-" + string(id) }
func lanOf(id peer.ID) string       { return "lan-" + string(id) }
func portsOf(id peer.ID) string     { return "ports-" + string(id) }
func groupOf(id peer.ID) string     { return "group-" + string(id) }

func fault(err error) error {
	return fmt.Errorf("isolation: nftables: %w; see that the kernel has NF_TABLES_IPV4, NF_TABLES_BRIDGE and NFT_CT: rivulet doctor --only kernel", err)
}

// The sets of the IPv4 table, and those of the bridge's.
const (
	allTenants, fromTenants, toTenants, ingressPods = "tenants", "from", "to", "ingress"
	seenTenants, selves                             = "seen", "selves"
	apiTenants                                      = "api"
	tenantPorts, ownAddress                         = "ports", "own"
	portMACs, portAddresses                         = "macs", "addresses"
	groupsOf, requestedAddrs                        = "groups", "asked"
)

// pairType is a source and a destination.
var pairType = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)

// portType is a protocol and a port.
var portType = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)

// A receiver is a port of the bridge with its MAC address, or its IPv4 address.
var (
	macOfPort     = nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr)
	addressOfPort = nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr)
)

// senderType is a port of the bridge, the MAC address and the IPv4 address of a sender.
var senderType = nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr, nftables.TypeIPAddr)

// write translates the world to the content of the two tables. The destination is that after Services were resolved.
// Bridged packets pass as well (br_netfilter).
//
//	forward  (base)  answers of established connections, errors: accept; saddr vmap @from ─▶ from-C; daddr vmap @to ─▶ to-C
//	input    (base)  the same: accept; saddr @tenants: to cluster DNS accept; saddr vmap @api ─▶ api-C; drop
//	seen     (nat)   saddr vmap @seen ─▶ seen-C: C's home's address for a pod here becomes that pod's
//	self     (nat)   a tenant that has reached itself this way: masqueraded, otherwise the answer would never leave it
//	api-C            to the address and port of C's API server: accept
//	from-C           to C's tenants of all nodes, endpoints, home, DNS, API server on another node: accept; C's Services: refuse; closed: drop
//	to-C             from C's tenants of all nodes, endpoints, home, ingress controllers, another node's server: accept;
//	                 from node ports of C's: accept; drop
func write(w world, told map[string]nft.Set) []nft.Program {
	decide := nft.Program{Family: nftables.TableFamilyIPv4, Base: decides(w.DNS), Chains: map[string]nft.Chain{}, Sets: map[string]nft.Set{}}
	all, from, to := nft.MakeSet(nftables.TypeIPAddr), nft.MakeSet(nftables.TypeIPAddr), nft.MakeSet(nftables.TypeIPAddr)
	seen, self, api := nft.MakeSet(nftables.TypeIPAddr), nft.MakeSet(pairType), nft.MakeSet(nftables.TypeIPAddr)
	from.Verdicts, to.Verdicts, seen.Verdicts, api.Verdicts = true, true, true, true
	decide.Sets[allTenants], decide.Sets[fromTenants], decide.Sets[toTenants] = all, from, to
	decide.Sets[seenTenants], decide.Sets[selves], decide.Sets[apiTenants] = seen, self, api
	decide.Sets[ingressPods] = addresses(w.Ingress)

	// A chain is immutable: its name depends on its content.
	closed := slices.Concat(ipam.Special4, w.Closed)
	closedName := named("closed", closed)
	decide.Chains[closedName] = eachWithin(nft.Destination, closed, nft.Drop)
	for _, c := range w.Consumers {
		tenants, endpoints, services := "tenants-"+string(c.ID), endpointsOf(c.ID), servicesOf(c.ID)
		decide.Sets[tenants], decide.Sets[endpoints], decide.Sets[services] = addresses(slices.Concat(c.Tenants, c.Others)), told[endpoints], told[services]
		lan, open := lanOf(c.ID), nft.MakeSet(portType)
		for _, p := range c.LAN {
			open.Add([]byte{p.Protocol, 0, 0, 0, byte(p.Number >> 8), byte(p.Number), 0, 0})
		}
		decide.Sets[lan] = open
		own := func(side uint32, rule func(...[]expr.Any)) {
			rule(nft.In(side, tenants), nft.Accept)
			rule(nft.In(side, endpoints), nft.Accept)
			if c.Home.IsValid() {
				rule(nft.Within(side, c.Home), nft.Accept)
			}
		}
		fromName, toName := named("from-"+string(c.ID), c.Home, closedName, w.DNS, c.API), named("to-"+string(c.ID), c.Home, w.Server)
		decide.Chains[fromName] = func(rule func(...[]expr.Any)) {
			// The bridge's table has decided who hears it, and a kernel routes none of it.
			rule(nft.PacketType(unix.PACKET_BROADCAST), nft.Accept)
			rule(nft.PacketType(unix.PACKET_MULTICAST), nft.Accept)
			own(nft.Destination, rule)
			rule(nft.AddressedTo(w.DNS), nft.Accept)
			if c.API.IsValid() { // on another node
				rule(nft.Within(nft.Destination, netip.PrefixFrom(c.API.Addr(), 32)), nft.TCPPort(c.API.Port()), nft.Accept)
			}
			// A packet that is still addressed to a Service has no endpoint, or not one of its ports.
			rule(nft.In(nft.Destination, services), nft.Refuse)
			rule(nft.Jump(closedName))
		}
		decide.Chains[toName] = func(rule func(...[]expr.Any)) {
			own(nft.Source, rule)
			rule(nft.In(nft.Source, ingressPods), nft.Accept)
			if w.Server.IsValid() {
				rule(nft.Within(nft.Source, netip.PrefixFrom(w.Server, 32)), nft.Accept)
			}
			rule(nft.DestinationTranslated, addressedToPort(lan), nft.Accept)
			rule(nft.Drop)
		}
		seenName := named("seen-"+string(c.ID), c.Seen, w.Pods)
		if c.Seen.IsValid() {
			decide.Chains[seenName] = func(rule func(...[]expr.Any)) { rule(nft.Within(nft.Destination, c.Seen), nft.ToPrefix(w.Pods)) }
		}
		apiName := named("api-"+string(c.ID), c.API)
		if c.API.IsValid() {
			decide.Chains[apiName] = func(rule func(...[]expr.Any)) {
				rule(nft.Within(nft.Destination, netip.PrefixFrom(c.API.Addr(), 32)), nft.TCPPort(c.API.Port()), nft.Accept)
			}
		}
		for _, a := range c.Tenants {
			if c.API.IsValid() {
				api.Lead(a.AsSlice(), expr.VerdictJump, apiName)
			}
			if c.Seen.IsValid() {
				seen.Lead(a.AsSlice(), expr.VerdictJump, seenName)
				self.Add(append(a.AsSlice(), a.AsSlice()...))
			}
			all.Add(a.AsSlice())
			from.Lead(a.AsSlice(), expr.VerdictJump, fromName)
			to.Lead(a.AsSlice(), expr.VerdictJump, toName)
		}
	}

	bridge := nft.Program{Family: nftables.TableFamilyBridge, Base: bridges, Chains: map[string]nft.Chain{}, Sets: map[string]nft.Set{}}
	ports, own := nft.MakeSet(nftables.TypeIFName), nft.MakeSet(senderType)
	macs, addrs, groups := nft.MakeSet(macOfPort), nft.MakeSet(addressOfPort), nft.MakeSet(nftables.TypeIFName)
	groups.Verdicts = true
	bridge.Sets[tenantPorts], bridge.Sets[ownAddress], bridge.Sets[requestedAddrs] = ports, own, addresses(w.Ingress)
	bridge.Sets[portMACs], bridge.Sets[portAddresses], bridge.Sets[groupsOf] = macs, addrs, groups
	for _, c := range w.Consumers {
		bridge.Sets[portsOf(c.ID)] = nft.MakeSet(nftables.TypeIFName)
		bridge.Chains[groupOf(c.ID)] = func(rule func(...[]expr.Any)) {
			rule([]expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: portsOf(c.ID)}}, nft.Accept)
		}
	}
	for _, g := range w.Tenants {
		port := nft.InterfaceKey(g.Veth)
		ports.Add(port)
		// A tenant without known addresses sends and hears nothing.
		mac, err := net.ParseMAC(g.MAC)
		if err != nil || len(mac) != 6 || !g.Addr.IsValid() {
			continue
		}
		own.Add(slices.Concat(port, mac, []byte{0, 0}, g.Addr.AsSlice()))
		macs.Add(slices.Concat(port, mac, []byte{0, 0}))
		addrs.Add(slices.Concat(port, g.Addr.AsSlice()))
		if group, ok := bridge.Sets[portsOf(g.Consumer)]; ok {
			groups.Lead(port, expr.VerdictJump, groupOf(g.Consumer))
			group.Add(port)
		}
	}
	return []nft.Program{decide, bridge}
}

func decides(dns netip.Addr) func(*nftables.Conn, *nftables.Table) {
	return func(c *nftables.Conn, t *nftables.Table) {
		forward := nft.Base(c, t, "forward", nftables.ChainHookForward, priority)
		// Only answers pass unjudged: an address outlives its pod, and a connection to it as well.
		nft.Rule(c, forward, nft.Established, nft.Reply, nft.Accept)
		nft.Rule(c, forward, nft.Related, nft.Accept)
		nft.Rule(c, forward, verdict(nft.Source, fromTenants))
		nft.Rule(c, forward, verdict(nft.Destination, toTenants))
		input := nft.Base(c, t, "input", nftables.ChainHookInput, priority)
		nft.Rule(c, input, nft.Established, nft.Reply, nft.Accept)
		nft.Rule(c, input, nft.Related, nft.Accept)
		nft.Rule(c, input, nft.In(nft.Source, allTenants), nft.AddressedTo(dns), nft.Accept)
		nft.Rule(c, input, verdict(nft.Source, apiTenants))
		nft.Rule(c, input, nft.In(nft.Source, allTenants), nft.Drop)
		// Before kube-proxy's, which does not have these addresses.
		nat := func(name string, hook *nftables.ChainHook, priority nftables.ChainPriority) *nftables.Chain {
			return c.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityRef(priority)})
		}
		nft.Rule(c, nat("seen", nftables.ChainHookPrerouting, -101), verdict(nft.Source, seenTenants))
		nft.Rule(c, nat("self", nftables.ChainHookPostrouting, 80), nft.DestinationTranslated, []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: nft.Source, Len: 4},
			&expr.Payload{DestRegister: 9, Base: expr.PayloadBaseNetworkHeader, Offset: nft.Destination, Len: 4},
			&expr.Lookup{SourceRegister: 1, SetName: selves},
			&expr.Masq{},
		})
	}
}

// bridges writes the bridge's rules: which sender addresses are allowed at which port, and who hears whom. Packets for
// one receiver are judged by the IPv4 table; these rules are for those that a bridge gives to all its ports.
//
//	own      (base)  from a tenant: IPv4 and ARP from its own addresses; all else: drop
//	forward  (base)  from port to port, once for each receiver; and
//	output   (base)  from the host to a port:
//	                 to a tenant: its own MAC address, or ARP that asks for its own address: accept; multicast and
//	                 broadcast: iifname vmap @groups ─▶ group-C: to C's ports accept; drop
//	                 from a tenant to another's port: multicast and broadcast, but for ARP that asks for an ingress
//	                 controller: drop
func bridges(c *nftables.Conn, t *nftables.Table) {
	chain := nft.Base(c, t, "own", nftables.ChainHookPrerouting, -300)
	in, out := &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}
	mac := func(offset uint32) expr.Any {
		return &expr.Payload{DestRegister: 12, Base: expr.PayloadBaseLLHeader, Offset: offset, Len: 6}
	}
	// A sender is composed in registers 1 (the name), 12 (MAC) and 14 (address).
	sender := func(address uint32) []expr.Any {
		return []expr.Any{in, mac(6), &expr.Payload{DestRegister: 14, Base: expr.PayloadBaseNetworkHeader, Offset: address, Len: 4},
			&expr.Lookup{SourceRegister: 1, SetName: ownAddress}}
	}
	fromTenant := []expr.Any{in, &expr.Lookup{SourceRegister: 1, SetName: tenantPorts}}
	toTenant := []expr.Any{out, &expr.Lookup{SourceRegister: 1, SetName: tenantPorts}}
	ip, arp := nft.EtherType(expr.CmpOpEq, unix.ETH_P_IP), nft.EtherType(expr.CmpOpEq, unix.ETH_P_ARP)
	nft.Rule(c, chain, []expr.Any{in, &expr.Lookup{SourceRegister: 1, SetName: tenantPorts, Invert: true}}, nft.Accept)
	nft.Rule(c, chain, ip, sender(nft.Source), nft.Accept)
	nft.Rule(c, chain, arp, sender(14), nft.Accept)
	nft.Rule(c, chain, nft.Drop)

	const asked = 24 // where ARP for IPv4 on Ethernet has the target's address, RFC 826
	heard := []expr.Any{out, mac(0), &expr.Lookup{SourceRegister: 1, SetName: portMACs}}
	requested := []expr.Any{out, &expr.Payload{DestRegister: 12, Base: expr.PayloadBaseNetworkHeader, Offset: asked, Len: 4},
		&expr.Lookup{SourceRegister: 1, SetName: portAddresses}}
	forward := nft.Base(c, t, "forward", nftables.ChainHookForward, -300)
	nft.Rule(c, forward, heard, nft.Accept)
	nft.Rule(c, forward, arp, requested, nft.Accept)
	nft.Rule(c, forward, nft.Not(toOne), []expr.Any{in, &expr.Lookup{SourceRegister: 1, SetName: groupsOf, DestRegister: 0, IsDestRegSet: true}})
	nft.Rule(c, forward, toTenant, nft.Drop)
	nft.Rule(c, forward, fromTenant, arp, []expr.Any{address(asked), &expr.Lookup{SourceRegister: 1, SetName: requestedAddrs}}, nft.Accept)
	nft.Rule(c, forward, fromTenant, nft.Not(toOne), nft.Drop)
	output := nft.Base(c, t, "output", nftables.ChainHookOutput, -300)
	nft.Rule(c, output, heard, nft.Accept)
	nft.Rule(c, output, arp, requested, nft.Accept)
	nft.Rule(c, output, toTenant, nft.Drop)
}

// toOne matches frames for one receiver: the first bit of the first byte of their destination is not set (IEEE
// 802-2014, 8.2.2).
var toOne = []expr.Any{
	&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 0, Len: 1},
	&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{1}, Xor: []byte{0}},
	&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0}},
}

// addressedToPort matches the sender's original destination port, before kube-proxy's translation.
func addressedToPort(set string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: 9, Direction: 0},
		&expr.Lookup{SourceRegister: 1, SetName: set},
	}
}

func address(offset uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

func verdict(offset uint32, set string) []expr.Any {
	return []expr.Any{address(offset), &expr.Lookup{SourceRegister: 1, SetName: set, DestRegister: 0, IsDestRegSet: true}}
}

func eachWithin(offset uint32, all []netip.Prefix, what []expr.Any) nft.Chain {
	return func(rule func(...[]expr.Any)) {
		for _, p := range all {
			rule(nft.Within(offset, p), what)
		}
	}
}

func addresses(all []netip.Addr) nft.Set {
	s := nft.MakeSet(nftables.TypeIPAddr)
	for _, a := range all {
		s.Add(a.AsSlice())
	}
	return s
}

// named is a name that is unique for what.
func named(prefix string, what ...any) string {
	sum := sha256.Sum256(fmt.Append(nil, what...))
	return fmt.Sprintf("%s-%x", prefix, sum[:8])
}
