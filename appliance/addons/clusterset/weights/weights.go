// Package weights distributes connections to Services by weights, which kube-proxy cannot: it distributes them evenly.
//
//	prerouting, output (nat, before kube-proxy's): address . protocol . port ─▶ the chain of the Service
//	to-…      a random number, or a hash of the sender's address ─▶ DNAT to the endpoint whose range has it
//	postrouting (nat): masquerades what kube-proxy would: senders that are no pods, and pods that reach themselves
//
// The first NAT rule of a connection decides, so kube-proxy's rules of such a Service apply only without this table.
//
// It reads what Set gives it, and alone writes the table. Restart: the table stays until the first Set. Failure: it is
// reported and tried again; kube-proxy's rules apply, or the table stays as it was.
package weights

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"reflect"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"rivulet/fabric/changes"
	"rivulet/fabric/nft"
)

// Table is the name of the table, IPv4.
const Table = "rivulet-services"

// Service is one port of a Service.
type Service struct {
	Addr     netip.AddrPort // the cluster IP and its port
	Protocol corev1.Protocol
	// Sticky: connections of one sender go to one endpoint as long as the parts are the same.
	Sticky bool
	Parts  []Part
}

// Part are the endpoints of one cluster. They share its connections evenly.
type Part struct {
	Weight    uint64
	Endpoints []netip.AddrPort
}

// Config is the input of New. All fields are required.
type Config struct {
	// Pods is the network of this cluster's pods, Services that of cluster IPs.
	Pods, Services netip.Prefix
	Guard          *nft.Guard
	// Report is called after each write; nil is success.
	Report func(error)
}

// Weights are the Services in force.
type Weights struct {
	Config
	services atomic.Pointer[[]Service]
	changed  changes.Signal
}

// New makes Weights.
func New(c Config) *Weights { return &Weights{Config: c} }

// Set replaces all Services; none removes the table.
func (w *Weights) Set(all []Service) {
	if old := w.services.Swap(&all); old == nil || !reflect.DeepEqual(*old, all) {
		w.changed.Notify()
	}
}

// Run writes the table until ctx ends; it stays.
func (w *Weights) Run(ctx context.Context) error {
	table := w.Guard.Tables(Table, nftables.TableFamilyIPv4)
	changed, stop := w.changed.Changed()
	defer stop()
	for {
		if all := w.services.Load(); all != nil {
			w.Report(w.write(table, *all))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-table.Changed():
		}
	}
}

func (w *Weights) write(table *nft.Tables, all []Service) (err error) {
	if len(all) == 0 {
		err = table.Clear()
	} else {
		_, err = table.Apply([]nft.Program{program(w.Pods, w.Services, all)})
	}
	if err != nil {
		return fmt.Errorf("weights: nftables: %w; see that the kernel has NFT_NAT, NFT_MASQ, NFT_NUMGEN and NFT_HASH", err)
	}
	return nil
}

// dividend is how many numbers are distributed: the error of a share is less than one of it.
const dividend = 1 << 24

// firsts are the first numbers of the endpoints' ranges, in order; the last ends with dividend. A part without endpoints
// has none.
func firsts(parts []Part) (endpoints []netip.AddrPort, first []uint32) {
	var all, before uint64
	for _, p := range parts {
		if len(p.Endpoints) > 0 {
			all += p.Weight
		}
	}
	for _, p := range parts {
		if len(p.Endpoints) == 0 || p.Weight == 0 {
			continue
		}
		for i, e := range p.Endpoints {
			endpoints = append(endpoints, e)
			first = append(first, uint32((float64(before)+float64(p.Weight)*float64(i)/float64(len(p.Endpoints)))/float64(all)*dividend))
		}
		before += p.Weight
	}
	return endpoints, first
}

const (
	natPriority        = -101 // kube-proxy's is -100
	masqueradePriority = 99   // kube-proxy's is 100

	services, self = "services", "self"

	end = "\x00" // sorts the end of a range before the next one's begin, as the kernel wants them
)

var (
	serviceType  = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	endpointType = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	pairType     = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)
	protocols    = map[corev1.Protocol]byte{corev1.ProtocolTCP: unix.IPPROTO_TCP, corev1.ProtocolUDP: unix.IPPROTO_UDP, corev1.ProtocolSCTP: unix.IPPROTO_SCTP}
)

// The second and third 32-bit register; register 1 is the first four of them.
const second, third = 9, 10

func program(pods, serviceCIDR netip.Prefix, all []Service) nft.Program {
	leads := nft.MakeSet(serviceType)
	leads.Verdicts = true
	p := nft.Program{Family: nftables.TableFamilyIPv4, Sets: map[string]nft.Set{services: leads, self: nft.MakeSet(pairType)}, Chains: map[string]nft.Chain{}}
	for _, s := range all {
		endpoints, first := firsts(s.Parts)
		if len(endpoints) == 0 {
			continue
		}
		numbers := nft.MakeSet(nftables.TypeInteger)
		numbers.Values, numbers.Ranges = endpointType, true
		for i, e := range endpoints {
			if i == len(first)-1 || first[i] < first[i+1] { // else its range is empty
				key := binary.BigEndian.AppendUint32(nil, first[i])
				if i > 0 {
					numbers.Elements[string(key)+end] = nftables.SetElement{Key: key, IntervalEnd: true}
				}
				numbers.Map(key, append(e.Addr().AsSlice(), port(e)...))
			}
			if pods.Contains(e.Addr()) {
				p.Sets[self].Add(append(e.Addr().AsSlice(), e.Addr().AsSlice()...))
			}
		}
		last := binary.BigEndian.AppendUint32(nil, dividend)
		numbers.Elements[string(last)+end] = nftables.SetElement{Key: last, IntervalEnd: true}
		sum := sha256.Sum256(fmt.Append(nil, s.Sticky, s.Addr, s.Protocol, endpoints, first))
		name := fmt.Sprintf("to-%x", sum[:12])
		p.Sets[name], p.Chains[name] = numbers, s.chain(name)
		leads.Lead(append(append(s.Addr.Addr().AsSlice(), protocols[s.Protocol], 0, 0, 0), port(s.Addr)...), expr.VerdictGoto, name)
	}
	p.Base = func(c *nftables.Conn, t *nftables.Table) { base(c, t, pods, serviceCIDR) }
	return p
}

// port is the port of an element, four bytes as registers have.
func port(a netip.AddrPort) []byte { return append(binaryutil.BigEndian.PutUint16(a.Port()), 0, 0) }

// chain translates the destination to one of the endpoints.
func (s Service) chain(numbers string) nft.Chain {
	number := []expr.Any{&expr.Numgen{Register: 1, Modulus: dividend, Type: unix.NFT_NG_RANDOM}}
	if s.Sticky {
		seed := binary.BigEndian.Uint32(s.Addr.Addr().AsSlice()) ^ uint32(s.Addr.Port()) // another one for each Service, and not 0
		number = []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: nft.Source, Len: 4},
			&expr.Hash{SourceRegister: 1, DestRegister: 1, Length: 4, Modulus: dividend, Seed: cmp.Or(seed, 1), Type: expr.HashTypeJenkins},
		}
	}
	return func(rule func(parts ...[]expr.Any)) {
		rule(number, []expr.Any{
			&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4}, // ranges compare bytes
			&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: numbers},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: second},
		})
	}
}

func base(c *nftables.Conn, t *nftables.Table, pods, serviceCIDR netip.Prefix) {
	load := func(register, offset, length uint32, base expr.PayloadBase) expr.Any {
		return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length}
	}
	hook := func(name string, at *nftables.ChainHook, priority nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeNAT, Hooknum: at, Priority: nftables.ChainPriorityRef(priority)})
	}
	for _, chain := range []*nftables.Chain{hook("prerouting", nftables.ChainHookPrerouting, natPriority), hook("output", nftables.ChainHookOutput, natPriority)} {
		nft.Rule(c, chain, []expr.Any{
			load(1, nft.Destination, 4, expr.PayloadBaseNetworkHeader), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: second},
			load(third, 2, 2, expr.PayloadBaseTransportHeader), &expr.Lookup{SourceRegister: 1, SetName: services, IsDestRegSet: true},
		})
	}
	toService := append([]expr.Any{&expr.Ct{Register: 1, Key: expr.CtKeyDST, Direction: 0}}, nft.Within(nft.Destination, serviceCIDR)[1:]...)
	masquerade := []expr.Any{&expr.Masq{FullyRandom: true}}
	postrouting := hook("postrouting", nftables.ChainHookPostrouting, masqueradePriority)
	nft.Rule(c, postrouting, nft.Not(nft.Within(nft.Source, pods)), nft.DestinationTranslated, toService, masquerade)
	nft.Rule(c, postrouting, []expr.Any{load(1, nft.Source, 4, expr.PayloadBaseNetworkHeader), load(second, nft.Destination, 4, expr.PayloadBaseNetworkHeader),
		&expr.Lookup{SourceRegister: 1, SetName: self}}, nft.DestinationTranslated, masquerade)
}
