package isolation

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Table is the name of both tables.
const Table = "rivulet-twins"

// private is what no guest reaches, whatever networks the host has: all that is not
// public.
var private = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("224.0.0.0/3"),
}

func (cfg Config) conn() (*nftables.Conn, error) {
	if cfg.netns != 0 {
		return nftables.New(nftables.WithNetNSFd(cfg.netns))
	}
	return nftables.New()
}

var families = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyBridge}

// stands reports whether the tables are there as they should be.
func (cfg Config) stands(wanted bool) bool {
	c, err := cfg.conn()
	if err != nil {
		return true // asked again later
	}
	for _, f := range families {
		tables, err := c.ListTablesOfFamily(f)
		if err != nil {
			return true
		}
		there := false
		for _, t := range tables {
			there = there || t.Name == Table
		}
		if there != wanted {
			return false
		}
	}
	return true
}

// build replaces both tables, each in one transaction; without guests it removes them.
func (cfg Config) build(w world) error {
	var errs []error
	for _, f := range families {
		c, err := cfg.conn()
		if err != nil {
			return fmt.Errorf("isolation: nftables: %w; see that the kernel has nf_tables", err)
		}
		t := &nftables.Table{Name: Table, Family: f}
		c.AddTable(t) // so that deleting it cannot fail
		c.DelTable(t)
		if len(w.Guests) > 0 {
			c.AddTable(t)
			if f == nftables.TableFamilyIPv4 {
				err = decide(c, t, w)
			} else {
				own(c, t, w)
			}
		}
		if err == nil {
			err = c.Flush()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("isolation: nftables: %w; see that the kernel has NF_TABLES_IPV4, NF_TABLES_BRIDGE and NFT_CT", err))
		}
	}
	return errors.Join(errs...)
}

// decide fills the IPv4 table. The destination is that after Services were resolved;
// what is under way goes on. Bridged packets come by as well (br_netfilter).
func decide(c *nftables.Conn, t *nftables.Table, w world) error {
	rule := func(chain *nftables.Chain, parts ...[]expr.Any) {
		var all []expr.Any
		for _, p := range parts {
			all = append(all, p...)
		}
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: all})
	}
	set := func(name string, addrs []netip.Addr) (*nftables.Set, error) {
		s := &nftables.Set{Table: t, Name: name, KeyType: nftables.TypeIPAddr}
		var elements []nftables.SetElement
		for _, a := range addrs {
			elements = append(elements, nftables.SetElement{Key: a.AsSlice()})
		}
		return s, c.AddSet(s, elements)
	}
	forward := c.AddChain(&nftables.Chain{Name: "forward", Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityRef(priority)})
	input := c.AddChain(&nftables.Chain{Name: "input", Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityRef(priority)})
	rule(forward, established, accept)
	rule(input, established, accept)
	for i, one := range w.Consumers {
		guests, err := set(fmt.Sprintf("guests-%d", i), one.Guests)
		if err != nil {
			return err
		}
		endpoints, err := set(fmt.Sprintf("endpoints-%d", i), one.Endpoints)
		if err != nil {
			return err
		}
		from := c.AddChain(&nftables.Chain{Name: fmt.Sprintf("from-%d", i), Table: t})
		to := c.AddChain(&nftables.Chain{Name: fmt.Sprintf("to-%d", i), Table: t})
		for _, side := range []struct {
			chain  *nftables.Chain
			offset uint32
		}{{from, destination}, {to, source}} {
			rule(side.chain, in(side.offset, guests), accept)
			rule(side.chain, in(side.offset, endpoints), accept)
			if one.Home.IsValid() {
				rule(side.chain, within(side.offset, one.Home), accept)
			}
		}
		rule(from, dns(w.DNS), accept)
		for _, list := range [][]netip.Prefix{private, w.Closed} {
			for _, p := range list {
				rule(from, within(destination, p), drop)
			}
		}
		for _, p := range w.Others {
			rule(to, within(source, p), accept)
		}
		rule(to, drop)

		rule(forward, in(source, guests), jump(from.Name))
		rule(forward, in(destination, guests), jump(to.Name))
		rule(input, in(source, guests), dns(w.DNS), accept)
		rule(input, in(source, guests), drop)
	}
	return nil
}

// own fills the bridge's table: who sends what from which port.
func own(c *nftables.Conn, t *nftables.Table, w world) {
	chain := c.AddChain(&nftables.Chain{Name: "own", Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-300)})
	add := func(parts ...[]expr.Any) {
		var all []expr.Any
		for _, p := range parts {
			all = append(all, p...)
		}
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: all})
	}
	for _, g := range w.Guests {
		port := iifname(g.Veth)
		if mac, err := net.ParseMAC(g.MAC); err == nil {
			add(port, payload(expr.PayloadBaseLLHeader, 6, expr.CmpOpNeq, mac), drop)
		}
		add(port, ethertype(expr.CmpOpEq, unix.ETH_P_IP), payload(expr.PayloadBaseNetworkHeader, source, expr.CmpOpEq, g.Addr.AsSlice()), accept)
		add(port, ethertype(expr.CmpOpEq, unix.ETH_P_ARP), payload(expr.PayloadBaseNetworkHeader, 14, expr.CmpOpEq, g.Addr.AsSlice()), accept)
		add(port, drop)
	}
}

const (
	priority            = -4 // before the filters of others
	source, destination = 12, 16
)

var (
	accept      = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	drop        = []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	established = []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED), Xor: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
)

// jump comes back when the chain has not decided: what may leave must also be let in.
func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

func payload(base expr.PayloadBase, offset uint32, op expr.CmpOp, data []byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: uint32(len(data))},
		&expr.Cmp{Op: op, Register: 1, Data: data},
	}
}

func ethertype(op expr.CmpOp, t uint16) []expr.Any {
	return payload(expr.PayloadBaseLLHeader, 12, op, binaryutil.BigEndian.PutUint16(t))
}

func in(offset uint32, s *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID},
	}
}

func within(offset uint32, p netip.Prefix) []expr.Any {
	mask := make([]byte, 4)
	binary.BigEndian.PutUint32(mask, ^uint32(0)<<(32-p.Bits()))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// dns is what was addressed to cluster DNS, wherever kube-proxy has sent it. Nothing
// but DNS is served at that address.
func dns(service netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeyDST, Direction: 0},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: service.AsSlice()},
	}
}

func iifname(name string) []expr.Any {
	padded := make([]byte, 16)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded},
	}
}
