package tunnel

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"rivulet/fabric/nft"
	"rivulet/fabric/reach"
)

// Table is the name of the tunnel's table, IPv4:
//
//	keep  (nat, postrouting, before all masquerading): pod addresses between pods and
//	      peers stay unchanged. flannel and kube-proxy would masquerade packets that
//	      leave the pod CIDR; the first NAT rule that matches a connection wins, and
//	      this one maps a prefix to itself.
//	guard (filter, prerouting, after conntrack, before all DNAT): a peer reaches pods,
//	      the control port and the port that measures paths, nothing else of the
//	      machine: no kubelet, no API server, no NodePort.
//
// A separate table (package reach) decides which pods a peer reaches. It exists before the interface is up, and is
// closed until the supervisor has filled it.
const Table = "rivulet"

const (
	keepPriority  = 90   // srcnat is 100
	guardPriority = -150 // conntrack is -200, dstnat -100
)

// setFirewall replaces the table in one transaction.
func (s *Server) setFirewall(cfg Config) error {
	if err := reach.Ensure(cfg.Interface, cfg.Address); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	s.guard = cfg
	s.rules.Forget()
	if _, err := s.rules.Apply([]nft.Program{{Family: nftables.TableFamilyIPv4, Base: cfg.firewall}}); err != nil {
		return fmt.Errorf("tunnel: nftables: %w: does this kernel have nf_tables, nft_nat and nft_fib?", err)
	}
	return nil
}

func (cfg Config) firewall(c *nftables.Conn, table *nftables.Table) {
	keep := c.AddChain(&nftables.Chain{Name: "keep", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(keepPriority)})
	pods := cfg.PodCIDR.Masked()
	nft.Rule(c, keep, nft.ToInterface(cfg.Interface), source(pods), same(pods))
	for _, p := range cfg.Peers {
		remote := p.PeerMappedCIDR.Masked()
		nft.Rule(c, keep, source(remote), destination(pods), same(remote))
	}

	guard := nft.Base(c, table, "guard", nftables.ChainHookPrerouting, guardPriority)
	own := destination(netip.PrefixFrom(cfg.Address, 32))
	nft.Rule(c, guard, nft.Not(nft.FromInterface(cfg.Interface)), nft.Accept)
	nft.Rule(c, guard, nft.Established, nft.Accept) // including errors about own connections
	nft.Rule(c, guard, own, nft.TCPPort(cfg.ControlPort), nft.Accept)
	nft.Rule(c, guard, own, nft.UDPPort(probePort), nft.Accept)
	nft.Rule(c, guard, nft.Protocol(unix.IPPROTO_ICMP), echoRequest, nft.Accept)
	nft.Rule(c, guard, notForOne, nft.Drop)
	nft.Rule(c, guard, nft.Not(destination(pods)), nft.Drop)
}

var (
	echoRequest = nft.Payload(expr.PayloadBaseTransportHeader, 0, expr.CmpOpEq, []byte{8})
	// notForOne matches what is for this host, at any of its addresses, and broadcast and multicast.
	notForOne = []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_UNICAST)},
	}
)

func source(p netip.Prefix) []expr.Any      { return nft.Within(nft.Source, p) }
func destination(p netip.Prefix) []expr.Any { return nft.Within(nft.Destination, p) }

// same is the source NAT of a prefix to itself, host bits kept: it changes nothing and settles the connection's NAT.
func same(p netip.Prefix) []expr.Any { return nft.FromPrefix(p) }
