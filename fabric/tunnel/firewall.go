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
//	      machine: no kubelet, no API server, no NodePort. Another node of this cluster
//	      reaches all of it: WireGuard lets it use its own addresses alone.
//
// Between nodes the addresses of pods and nodes stay unchanged, too. What comes from elsewhere and goes to a pod on
// another node, as a NodePort's client does, gets this node's address; a node's own program that connects to a pod at a
// peer gets the tunnel's.
//
// A separate table (package reach) decides which pods a peer reaches. It exists before the interface is up, and is
// closed until the supervisor has filled it. On a worker it is this process's: the server decides.
const Table = "rivulet"

const (
	keepPriority  = 90   // srcnat is 100
	guardPriority = -150 // conntrack is -200, dstnat -100
)

// setFirewall replaces the table in one transaction.
func (s *Server) setFirewall(cfg Config) error {
	if err := reach.Ensure(cfg.Interface, cfg.Address, cfg.behind()...); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	if cfg.leaf() {
		s.reached.Forget()
		all := reach.Rules{Interface: cfg.Interface, Own: cfg.Address, Nodes: cfg.behind()}
		if _, err := s.reached.Apply([]nft.Program{reach.Program(all)}); err != nil {
			return reach.Fault(err)
		}
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
	out := nft.ToInterface(cfg.Interface)
	nft.Rule(c, keep, out, source(pods), same(pods))
	for _, p := range cfg.Peers { // before the rules of nodes, which give a peer's pods this node's address otherwise
		remote := p.PeerMappedCIDR.Masked()
		nft.Rule(c, keep, source(remote), destination(pods), same(remote))
	}
	for _, p := range cfg.Peers {
		for _, behind := range p.Behind {
			nft.Rule(c, keep, out, source(cfg.Nodes), destination(behind), same(cfg.Nodes))
			nft.Rule(c, keep, out, destination(behind), nft.FromAddress(cfg.Node))
			if !pods.Overlaps(behind) { // between pods nobody masquerades but kube-proxy, where a pod reaches itself by a Service
				nft.Rule(c, keep, source(behind), destination(pods), same(behind))
			}
		}
	}
	if cfg.Node.IsValid() {
		nft.Rule(c, keep, out, source(cfg.Nodes), nft.FromAddress(cfg.Address))
	}

	guard := nft.Base(c, table, "guard", nftables.ChainHookPrerouting, guardPriority)
	own := destination(netip.PrefixFrom(cfg.Address, 32))
	nft.Rule(c, guard, nft.Not(nft.FromInterface(cfg.Interface)), nft.Accept)
	nft.Rule(c, guard, nft.Established, nft.Accept) // including errors about own connections
	if cfg.Node.IsValid() {
		nft.Rule(c, guard, source(pods), nft.Accept)
		nft.Rule(c, guard, source(cfg.Nodes), nft.Accept)
	}
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
