package isolation

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"rivulet/fabric/nft"
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

var families = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyBridge}

// stands reports whether the tables are there as they should be.
func (cfg Config) stands(wanted bool) bool {
	n, err := nft.Stand(cfg.netns, Table, families...)
	switch {
	case err != nil:
		return true // asked again later
	case wanted:
		return n == len(families)
	}
	return n == 0
}

// build replaces both tables, each in one transaction; without guests it removes them.
func (cfg Config) build(w world) error {
	var errs []error
	for _, f := range families {
		c, err := nft.Open(cfg.netns)
		if err != nil {
			return fmt.Errorf("isolation: nftables: %w; see that the kernel has nf_tables", err)
		}
		t := &nftables.Table{Name: Table, Family: f}
		nft.Remove(c, t)
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
	rule := func(chain *nftables.Chain, parts ...[]expr.Any) { nft.Rule(c, chain, parts...) }
	set := func(name string, addrs []netip.Addr) (*nftables.Set, error) {
		s := nft.NewSet(t, name, nftables.TypeIPAddr)
		var elements []nftables.SetElement
		for _, a := range addrs {
			elements = append(elements, nftables.SetElement{Key: a.AsSlice()})
		}
		return s, c.AddSet(s, elements)
	}
	forward := nft.Base(c, t, "forward", nftables.ChainHookForward, priority)
	input := nft.Base(c, t, "input", nftables.ChainHookInput, priority)
	rule(forward, nft.Established, nft.Accept)
	rule(input, nft.Established, nft.Accept)
	doors, err := set("doors", w.Doors)
	if err != nil {
		return err
	}
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
		}{{from, nft.Destination}, {to, nft.Source}} {
			rule(side.chain, nft.In(side.offset, guests), nft.Accept)
			rule(side.chain, nft.In(side.offset, endpoints), nft.Accept)
			if one.Home.IsValid() {
				rule(side.chain, nft.Within(side.offset, one.Home), nft.Accept)
			}
		}
		rule(from, nft.AddressedTo(w.DNS), nft.Accept)
		for _, list := range [][]netip.Prefix{private, w.Closed} {
			for _, p := range list {
				rule(from, nft.Within(nft.Destination, p), nft.Drop)
			}
		}
		rule(to, nft.In(nft.Source, doors), nft.Accept)
		for _, p := range w.Others {
			rule(to, nft.Within(nft.Source, p), nft.Accept)
		}
		rule(to, nft.Drop)

		rule(forward, nft.In(nft.Source, guests), nft.Jump(from.Name))
		rule(forward, nft.In(nft.Destination, guests), nft.Jump(to.Name))
		rule(input, nft.In(nft.Source, guests), nft.AddressedTo(w.DNS), nft.Accept)
		rule(input, nft.In(nft.Source, guests), nft.Drop)
	}
	return nil
}

// own fills the bridge's table: who sends what from which port.
func own(c *nftables.Conn, t *nftables.Table, w world) {
	chain := nft.Base(c, t, "own", nftables.ChainHookPrerouting, -300)
	add := func(parts ...[]expr.Any) { nft.Rule(c, chain, parts...) }
	for _, g := range w.Guests {
		port := nft.FromInterface(g.Veth)
		if mac, err := net.ParseMAC(g.MAC); err == nil {
			add(port, nft.Payload(expr.PayloadBaseLLHeader, 6, expr.CmpOpNeq, mac), nft.Drop)
		}
		add(port, nft.EtherType(expr.CmpOpEq, unix.ETH_P_IP), nft.Payload(expr.PayloadBaseNetworkHeader, nft.Source, expr.CmpOpEq, g.Addr.AsSlice()), nft.Accept)
		add(port, nft.EtherType(expr.CmpOpEq, unix.ETH_P_ARP), nft.Payload(expr.PayloadBaseNetworkHeader, 14, expr.CmpOpEq, g.Addr.AsSlice()), nft.Accept)
		add(port, nft.Drop)
	}
}

const priority = -4 // before the filters of others
