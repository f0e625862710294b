package homeaddr

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"rivulet/fabric/nft"
	"rivulet/offload/policy"
)

const (
	toHere, toHome  = "here", "home"  // the maps, by direction
	relayed         = "relayed"       // that of pods that home relays to, to their addresses here
	portToHere      = "ports"         // that of node ports
	sent, got       = "sent", "got"   // the chains of ICMP errors
	requested, mine = "asked", "mine" // the chains for the Service range, and for outgoing packets
	outPriority     = -150
	inPriority      = -300
)

// state is the content of a table: the Services, and for a pod with home's addresses how its home sees pods, with the
// pod's own address.
type state struct {
	services Services
	view     View
	own      Pair // of one address each; the zero value is none
}

// programs are the tables in one pod's namespace. They have no connection state: each address has one counterpart, in
// both directions.
//
//	out (output)      own address ─▶ the one here; cluster DNS: unchanged; a Service at home, or a
//	                  node port ─▶ its twin, otherwise of the Service range: refuse; a pod in home's
//	                  view ─▶ its address here
//	in  (prerouting)  the reverse, and in packets that ICMP errors quote
//	arp in, out       a request for the address here is answered by the pod; the pod requests from it
func (p *Pods) programs(s state) []nft.Program {
	all := []nft.Program{p.translates(s)}
	if s.own.Home.IsValid() {
		all = append(all, answers(s.own))
	}
	return all
}

func (p *Pods) translates(s state) nft.Program {
	here, ports, home := nft.MakeSet(nftables.TypeIPAddr), nft.MakeSet(nodePort), nft.MakeSet(nftables.TypeIPAddr)
	here.Values, ports.Values, home.Values = nftables.TypeIPAddr, nftables.TypeIPAddr, nftables.TypeIPAddr
	keys := slices.SortedFunc(maps.Keys(s.services), At.compare)
	for _, at := range keys[:min(len(keys), Most)] {
		twin := s.services[at].AsSlice()
		if at.Port == 0 {
			here.Map(at.Addr.AsSlice(), twin)
		} else {
			ports.Map(at.key(), twin)
		}
		home.Map(twin, at.Addr.AsSlice())
	}
	own := s.own.Home.IsValid()
	single := nft.MakeSet(nftables.TypeIPAddr)
	single.Values = nftables.TypeIPAddr
	var view View
	for _, pair := range s.view {
		if pair.single() {
			single.Map(pair.Home.Addr().AsSlice(), pair.Here.Addr().AsSlice())
			home.Map(pair.Here.Addr().AsSlice(), pair.Home.Addr().AsSlice())
		} else {
			view = append(view, pair)
		}
	}
	return nft.Program{
		Family: nftables.TableFamilyIPv4, Sets: map[string]nft.Set{toHere: here, portToHere: ports, toHome: home, relayed: single},
		Base: func(c *nftables.Conn, t *nftables.Table) {
			dns := netip.PrefixFrom(p.dns, 32)
			told := c.AddChain(&nftables.Chain{Name: got, Table: t})
			if own {
				nft.Rule(c, told, quotedSource.move(s.own.Here, s.own.Home))
			}
			nft.Rule(c, told, quotedDestination.find(toHome), leave)
			for _, pair := range view {
				nft.Rule(c, told, quotedDestination.move(pair.Here, pair.Home), leave)
			}
			tells := c.AddChain(&nftables.Chain{Name: sent, Table: t})
			if own {
				nft.Rule(c, tells, quotedDestination.move(s.own.Home, s.own.Here))
			}
			nft.Rule(c, tells, quotedSource.find(relayed), leave)
			for _, pair := range view {
				nft.Rule(c, tells, quotedSource.move(pair.Home, pair.Here), leave)
			}
			// A refusal is sent to the sender's address, so its packet must still be unchanged.
			services := c.AddChain(&nftables.Chain{Name: requested, Table: t})
			leaves := c.AddChain(&nftables.Chain{Name: mine, Table: t})
			if own {
				nft.Rule(c, leaves, source.move(s.own.Home, s.own.Here))
			}
			nft.Rule(c, leaves, nft.Accept)
			nft.Rule(c, services, destination.within(dns), nft.Jump(mine))
			nft.Rule(c, services, destination.find(toHere), nft.Jump(mine))
			nft.Rule(c, services, nft.Refuse)
			out := nft.Base(c, t, "out", nftables.ChainHookOutput, outPriority)
			in := nft.Base(c, t, "in", nftables.ChainHookPrerouting, inPriority)
			nft.Rule(c, out, nft.ToInterface("lo"), nft.Accept)
			nft.Rule(c, in, nft.FromInterface("lo"), nft.Accept) // including refusals
			if own {
				// A redirect names a next hop by an address with another meaning here.
				nft.Rule(c, in, icmp(redirect), nft.Drop)
				for _, failure := range failures {
					nft.Rule(c, out, icmp(failure), nft.Jump(sent))
				}
			}
			nft.Rule(c, out, destination.within(p.services), nft.Jump(requested))
			if own {
				nft.Rule(c, out, source.move(s.own.Home, s.own.Here))
			}
			nft.Rule(c, out, destination.findPort(portToHere), nft.Accept)
			nft.Rule(c, out, destination.find(relayed), nft.Accept)
			for _, pair := range view {
				nft.Rule(c, out, destination.move(pair.Home, pair.Here), nft.Accept)
			}
			for _, pair := range view {
				nft.Rule(c, out, destination.within(pair.Here), nft.Drop)
			}
			for _, failure := range failures {
				nft.Rule(c, in, icmp(failure), nft.Jump(got))
			}
			if own {
				nft.Rule(c, in, destination.move(s.own.Here, s.own.Home))
			}
			nft.Rule(c, in, source.within(dns), nft.Accept)
			nft.Rule(c, in, source.find(toHome), nft.Accept)
			for _, pair := range view {
				nft.Rule(c, in, source.move(pair.Here, pair.Home), nft.Accept)
			}
		},
	}
}

// answers makes the pod use its address here in ARP, although its interface does not have it.
func answers(own Pair) nft.Program {
	return nft.Program{
		Family: nftables.TableFamilyARP,
		Base: func(c *nftables.Conn, t *nftables.Table) {
			// NF_ARP_IN and NF_ARP_OUT
			in := nft.Base(c, t, "in", nftables.ChainHookRef(0), 0)
			nft.Rule(c, in, arpTarget.move(own.Here, own.Home))
			out := nft.Base(c, t, "out", nftables.ChainHookRef(1), 0)
			nft.Rule(c, out, arpSender.move(own.Home, own.Here))
		},
	}
}

// The types of ICMP errors: unreachable, time exceeded, parameter problem; and of redirects.
var failures = []byte{3, 11, 12}

const redirect = 5

func icmp(kind byte) []expr.Any {
	return append(nft.Protocol(unix.IPPROTO_ICMP), nft.Payload(expr.PayloadBaseTransportHeader, 0, expr.CmpOpEq, []byte{kind})...)
}

var leave = []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}

// field is an IPv4 address in a packet, with the checksums that cover it.
type field struct {
	base   expr.PayloadBase
	offset uint32
	sum    expr.PayloadCsumType
	at     uint32 // of the checksum, in the same header
	flags  uint32
}

var (
	source      = field{expr.PayloadBaseNetworkHeader, nft.Source, expr.CsumTypeInet, 10, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR}
	destination = field{expr.PayloadBaseNetworkHeader, nft.Destination, expr.CsumTypeInet, 10, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR}
	// Those of the packet that an ICMP error quotes. Receivers do not verify the quoted checksums.
	quotedSource      = field{expr.PayloadBaseTransportHeader, 8 + nft.Source, expr.CsumTypeInet, 2, 0}
	quotedDestination = field{expr.PayloadBaseTransportHeader, 8 + nft.Destination, expr.CsumTypeInet, 2, 0}
	arpSender         = field{expr.PayloadBaseNetworkHeader, 14, expr.CsumTypeNone, 0, 0}
	arpTarget         = field{expr.PayloadBaseNetworkHeader, 24, expr.CsumTypeNone, 0, 0}
)

func (f field) load() expr.Any {
	return &expr.Payload{DestRegister: 1, Base: f.base, Offset: f.offset, Len: 4}
}

func (f field) store() expr.Any {
	return &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: f.base, Offset: f.offset, Len: 4,
		CsumType: f.sum, CsumOffset: f.at, CsumFlags: f.flags}
}

func (f field) within(p netip.Prefix) []expr.Any {
	return []expr.Any{f.load(),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask(p), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Addr().AsSlice()}}
}

// find replaces an address that is in the map.
func (f field) find(set string) []expr.Any {
	return []expr.Any{f.load(), &expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: set}, f.store()}
}

// findPort does the same with address, protocol and port of the destination. Registers after the first have 4 bytes.
func (f field) findPort(set string) []expr.Any {
	const second, third = 9, 10
	return []expr.Any{f.load(),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: second},
		&expr.Payload{DestRegister: third, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: set}, f.store()}
}

// nodePort is the key of a map of node ports.
var nodePort = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)

func (a At) key() []byte {
	key := append(a.Addr.AsSlice(), a.Protocol, 0, 0, 0)
	return append(binary.BigEndian.AppendUint16(key, a.Port), 0, 0)
}

func (a At) compare(b At) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// move replaces one prefix of an address by the other and keeps the host bits.
func (f field) move(from, to netip.Prefix) []expr.Any {
	host := mask(from)
	for i := range host {
		host[i] = ^host[i]
	}
	return append(f.within(from), f.load(),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: host, Xor: to.Addr().AsSlice()}, f.store())
}

func mask(p netip.Prefix) []byte { return net.CIDRMask(p.Bits(), 32) }

// Reflected is one Service in a twin.
type Reflected struct {
	Namespace, Name string
	// Home is its cluster IP at home, or with Ports the address of home's node. It comes from the consumer and is not
	// trusted.
	Home netip.Addr
	// Ports are its node ports: "TCP/30080,UDP/30080".
	Ports string
	Here  netip.Addr // its cluster IP
}

// ReflectedOf reads a Service in a twin; missing or malformed addresses are not valid.
func ReflectedOf(s *corev1.Service) Reflected {
	r := Reflected{Namespace: s.Namespace, Name: s.Name}
	home, cluster := s.Annotations[policy.HomeAddressAnnotation]
	if !cluster {
		var ports []string
		for _, p := range s.Spec.Ports {
			ports = append(ports, fmt.Sprintf("%s/%d", p.Protocol, p.Port))
		}
		if len(ports) > 0 {
			home, r.Ports = s.Annotations[policy.HomeNodeAnnotation], strings.Join(ports, ",")
		}
	}
	r.Home, _ = netip.ParseAddr(home)
	r.Here, _ = netip.ParseAddr(s.Spec.ClusterIP)
	return r
}

// at are its locations at home.
func (r Reflected) at() (all []At) {
	if r.Ports == "" {
		return []At{Cluster(r.Home)}
	}
	for port := range strings.SplitSeq(r.Ports, ",") {
		protocol, number, _ := strings.Cut(port, "/")
		n, err := strconv.ParseUint(number, 10, 16)
		if p := protocols[protocol]; err == nil && n > 0 && p > 0 {
			all = append(all, At{r.Home, p, uint16(n)})
		}
	}
	return all
}

var protocols = map[string]byte{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP, "SCTP": unix.IPPROTO_SCTP}

// Map returns the addresses at home of one consumer's Services. If two claim the same one, the first by name has it.
func Map(all []Reflected) Services {
	slices.SortFunc(all, func(a, b Reflected) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	out := Services{}
	taken := map[netip.Addr]bool{}
	for _, s := range all {
		if taken[s.Here] || !usable(s.Home) || !s.Here.Is4() {
			continue
		}
		for _, at := range s.at() {
			if _, twice := out[at]; !twice && len(out) < Most {
				out[at], taken[s.Here] = s.Here, true
			}
		}
	}
	return out
}

func usable(a netip.Addr) bool { return a.Is4() && a.IsGlobalUnicast() }
