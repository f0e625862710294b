package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/fabric/netmon"
)

const (
	// rulePriority is before the rules of VPNs: strongSwan's has 220 (its charon.routing_table_prio), Tailscale's 5210 to
	// 5270 (its router package). A rule that comes before it pushes ours further to the front.
	rulePriority = 200
	// ruleOwner marks our rules: a protocol (rtnetlink(7)) that iproute2's table of names leaves free.
	ruleOwner = 82
)

// ensureRules makes the kernel look up the cluster's networks in the main table first. An exit node of Tailscale or
// strongSwan has a rule that takes every packet otherwise, those to pods and Services among them. Without rules of others
// there are none of ours: they would make each lookup slower. It returns which of ours somebody has removed.
func ensureRules(networks []netip.Prefix) (missing []string, err error) {
	all, err := listRules()
	if err != nil {
		return nil, err
	}
	priority := rulePriority
	for _, r := range all {
		if ofOthers(r) {
			priority = min(priority, r.Priority-1)
		}
	}
	if !slices.ContainsFunc(all, ofOthers) {
		networks = nil
	}
	priority = max(priority, 1) // 0 is the local table's
	some := slices.ContainsFunc(all, ours)
	kept := map[string]bool{}
	for _, r := range all {
		if ours(r) && r.Priority == priority {
			kept[r.Dst.String()] = true
		}
	}
	wanted := map[string]bool{}
	for _, n := range networks {
		if !n.IsValid() || !n.Addr().Is4() || n.Bits() == 0 { // of a worker the server tells the block
			continue
		}
		n = n.Masked()
		rule := netlink.NewRule()
		rule.Priority, rule.Table, rule.Protocol = priority, unix.RT_TABLE_MAIN, ruleOwner
		rule.Dst = &net.IPNet{IP: n.Addr().AsSlice(), Mask: net.CIDRMask(n.Bits(), 32)}
		if wanted[rule.Dst.String()] = true; kept[rule.Dst.String()] {
			continue
		}
		if e := netlink.RuleAdd(rule); e != nil && !errors.Is(e, syscall.EEXIST) {
			err = errors.Join(err, fmt.Errorf("host: rule to %s: %w", n, e))
		} else if some {
			missing = append(missing, "rule to "+n.String())
		}
	}
	_, e := dropRules(all, func(r netlink.Rule) bool { return r.Priority != priority || !wanted[r.Dst.String()] })
	return missing, errors.Join(err, e)
}

// DropRules removes the rules that Keep has added, and returns them.
func DropRules() (removed []string, err error) {
	all, err := listRules()
	if err != nil {
		return nil, err
	}
	return dropRules(all, ours)
}

// listRules returns none where the kernel has no rules at all (CONFIG_IP_MULTIPLE_TABLES): VPNs have none there, either.
func listRules() ([]netlink.Rule, error) {
	all, err := netmon.Dump(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_V4) })
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EAFNOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("host: rules of routing cannot be listed: %w; look at them with: ip rule", err)
	}
	return all, nil
}

func dropRules(all []netlink.Rule, which func(netlink.Rule) bool) (removed []string, err error) {
	for _, r := range all {
		if !ours(r) || !which(r) {
			continue
		}
		if e := netlink.RuleDel(&r); e != nil && !errors.Is(e, syscall.ENOENT) {
			err = errors.Join(err, fmt.Errorf("host: rule to %s: %w; ip rule del priority %d to %s", r.Dst, e, r.Priority, r.Dst))
			continue
		}
		removed = append(removed, "rule to "+r.Dst.String())
	}
	return removed, err
}

func ours(r netlink.Rule) bool { return r.Protocol == ruleOwner && r.Dst != nil }

// ofOthers reports whether a rule leads to a table that a program has made.
func ofOthers(r netlink.Rule) bool {
	return !ours(r) && !slices.Contains([]int{unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN, unix.RT_TABLE_DEFAULT}, r.Table)
}
