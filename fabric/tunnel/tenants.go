package tunnel

import (
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"rivulet/fabric/nft"
)

// closeTenants disconnects tenants when their isolation rules are missing at two checks in a row: the supervisor, which
// restores them within one interval, hangs or is down. When it returns it replaces this table by its own. It is called
// with mu held.
func (s *Server) closeTenants() error {
	n, err := nft.Stand(0, nft.Isolation, nftables.TableFamilyBridge)
	if err != nil || n > 0 {
		s.isolated = 2
		return err
	}
	if s.isolated == 0 {
		return nil // the rules did not exist, or there are no tenants
	}
	if s.isolated--; s.isolated > 0 {
		return nil
	}
	links, err := netlink.LinkList()
	if err != nil {
		s.isolated = 1
		return err
	}
	ports := nft.MakeSet(nftables.TypeIFName)
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Alias, nft.TenantAlias) {
			ports.Add(nft.InterfaceKey(l.Attrs().Name))
		}
	}
	if len(ports.Elements) == 0 {
		return nil
	}
	closed := nft.Program{Family: nftables.TableFamilyBridge, Sets: map[string]nft.Set{"ports": ports}, Base: func(c *nftables.Conn, t *nftables.Table) {
		for name, hook := range map[string]*nftables.ChainHook{"in": nftables.ChainHookPrerouting, "out": nftables.ChainHookPostrouting} {
			key := map[string]expr.MetaKey{"in": expr.MetaKeyIIFNAME, "out": expr.MetaKeyOIFNAME}[name]
			nft.Rule(c, nft.Base(c, t, name, hook, -300), []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: "ports"}}, nft.Drop)
		}
	}}
	s.log.Warn("the rules that isolate pods of other clusters are gone and nobody puts them back; these pods have no network until the supervisor does", "pods", len(ports.Elements))
	all := nft.Tables{Name: nft.Isolation, Families: []nftables.TableFamily{nftables.TableFamilyBridge}}
	_, err = all.Apply([]nft.Program{closed})
	return err
}
