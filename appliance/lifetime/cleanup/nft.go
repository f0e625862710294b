package cleanup

import (
	"slices"

	"github.com/google/nftables"

	"rivulet/appliance/addons/clusterset/weights"
	"rivulet/appliance/addons/netpol"
	"rivulet/appliance/machine/firewall"
	"rivulet/fabric/reach"
	"rivulet/offload/nodeagent/isolation"
)

// ourTables are all tables of Rivulet on the host.
var ourTables = []string{tunnelTable, firewall.Table, isolation.Table, reach.Table, netpol.Table, weights.Table}

// tables removes ourTables, and tables of iptables that have become empty.
func (c *cleaner) tables() {
	conn, err := nftables.New()
	if err != nil {
		return // a kernel without nftables has no tables
	}
	all, err := conn.ListTables()
	if err != nil {
		return
	}
	var names []string
	for _, t := range all {
		if slices.Contains(ourTables, t.Name) || iptablesTable(t) && isEmpty(conn, t) {
			conn.DelTable(t)
			names = append(names, t.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	if err := conn.Flush(); err != nil {
		c.left("nftables tables %v: %v; nft list ruleset shows them, nft delete table removes one", names, err)
		return
	}
	c.removed("nftables tables (%d)", len(names))
}

// tunnelTable is the tunnel's table (package tunnel).
const tunnelTable = "rivulet"

func iptablesTable(t *nftables.Table) bool {
	return (t.Family == nftables.TableFamilyIPv4 || t.Family == nftables.TableFamilyIPv6) &&
		slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, t.Name)
}

// isEmpty reports whether a table has only built-in chains without rules and with policy accept.
func isEmpty(conn *nftables.Conn, t *nftables.Table) bool {
	chains, err := conn.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return false
	}
	for _, ch := range chains {
		if ch.Table.Name != t.Name {
			continue
		}
		if ch.Hooknum == nil || ch.Policy != nil && *ch.Policy != nftables.ChainPolicyAccept {
			return false
		}
		rules, err := conn.GetRules(t, ch)
		if err != nil || len(rules) > 0 {
			return false
		}
	}
	sets, err := conn.GetSets(t)
	return err == nil && len(sets) == 0
}
