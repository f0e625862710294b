package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
)

// What both ends look like. Both clusters use the same pod CIDR, as k3s does;
// for the bare tunnel, which cannot translate, pods have a second address.
const (
	podCIDR      = "10.42.0.0/16"
	podAddress   = "10.42.0.5"
	podGateway   = "10.42.0.1"
	podBridge    = "cni0"
	podVeth      = "vethpod" // the node's end
	tunAddress   = "10.42.255.254"
	tunInterface = "riv0"
	mtu          = 1420 // 1500 less WireGuard's overhead, as Rivulet chooses on a LAN
	tunnelPort   = 7442
)

// side is what differs between the two ends.
type side struct {
	name   string
	lan    netip.Addr   // of the node
	as     netip.Prefix // how the other end sees this end's pods
	plain  netip.Prefix // this end's pods for the bare tunnel
	node   *Namespace
	pod    *Namespace
	secret key
}

func (s *side) plainPod() netip.Addr { return host(s.plain) }
func (s *side) seenPod() netip.Addr  { return host(s.as) }

// host is the pod's address, 0.5, in another prefix.
func host(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	b[3] = 5
	return netip.AddrFrom4(b)
}

// network is the four namespaces.
type network struct{ a, b *side }

func newNetwork() (*network, error) {
	n := &network{
		a: &side{name: "a", lan: netip.MustParseAddr("10.77.0.1"), as: netip.MustParsePrefix("10.200.0.0/16"), plain: netip.MustParsePrefix("10.97.0.0/16")},
		b: &side{name: "b", lan: netip.MustParseAddr("10.77.0.2"), as: netip.MustParsePrefix("10.201.0.0/16"), plain: netip.MustParsePrefix("10.98.0.0/16")},
	}
	for _, s := range []*side{n.a, n.b} {
		if err := s.make(); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	err := cable(n.a.node, "eth0", n.a.lan.String()+"/24", n.b.node, "eth0", n.b.lan.String()+"/24")
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (s *side) make() (err error) {
	if s.secret, err = newKey(); err != nil {
		return err
	}
	if s.node, err = NewNamespace(); err != nil {
		return err
	}
	if s.pod, err = NewNamespace(); err != nil {
		return err
	}
	if err := cable(s.node, podVeth, "", s.pod, "eth0", podAddress+"/24"); err != nil {
		return err
	}
	if err := s.node.Do(bridge); err != nil {
		return err
	}
	return errors.Join(
		s.pod.Do(func() error {
			return errors.Join(setUp("lo", s.plainPod().String()+"/32"), route("0.0.0.0/0", "eth0", podGateway))
		}),
		s.node.Do(func() error {
			return errors.Join(forward(), track(), route(s.plainPod().String()+"/32", podBridge, podAddress))
		}))
}

// bridge puts the pod behind a bridge, as the container network of a device does.
func bridge() error {
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: podBridge}}
	if err := netlink.LinkAdd(br); err != nil {
		return fmt.Errorf("wire: bridge: %w", err)
	}
	veth, err := netlink.LinkByName(podVeth)
	if err != nil {
		return fmt.Errorf("wire: %s: %w", podVeth, err)
	}
	if err := errors.Join(netlink.LinkSetMaster(veth, br), netlink.LinkSetHairpin(veth, true)); err != nil {
		return fmt.Errorf("wire: bridge: %w", err)
	}
	return setUp(podBridge, podGateway+"/24")
}

// track switches connection tracking and NAT on, as a CNI and kube-proxy do on every node
// of a cluster, whatever tunnel it has. It costs a round trip a twelfth.
func track() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	table := c.AddTable(&nftables.Table{Name: "node", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{Name: "prerouting", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE}, &expr.Verdict{Kind: expr.VerdictAccept}}})
	c.AddChain(&nftables.Chain{Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("wire: connection tracking: %w", err)
	}
	return nil
}

// close lets the namespaces go.
func (n *network) close() error {
	var errs []error
	for _, s := range []*side{n.a, n.b} {
		for _, ns := range []*Namespace{s.node, s.pod} {
			if ns != nil {
				errs = append(errs, ns.Close())
			}
		}
	}
	return errors.Join(errs...)
}

func parseIP(s string) net.IP { return net.ParseIP(s).To4() }

func parseCIDR(s string) (net.IP, *net.IPNet, error) {
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		return nil, nil, fmt.Errorf("wire: %w", err)
	}
	return ip, n, nil
}
