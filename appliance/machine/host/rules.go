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
)

const (
	// rulePriority is before the rules of VPNs: strongSwan's has 220 (its charon.routing_table_prio), Tailscale's 5210 to
	// 5270 (its router package).
	rulePriority = 200
	// ruleOwner marks our rules: a protocol (rtnetlink(7)) that iproute2's table of names leaves free.
	ruleOwner = 82
)

// ensureRules makes the kernel look up the cluster's networks in the main table first. An exit node of Tailscale or
// strongSwan has a rule that takes every packet otherwise, those to pods and Services among them. Without rules of others
// there are none of ours: they would make each lookup slower. It returns what it has added.
func ensureRules(networks []netip.Prefix) (missing []string, err error) {
	all, err := netlink.RuleList(netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("host: rules of routing: %w", err)
	}
	if !slices.ContainsFunc(all, ofOthers) {
		_, err := dropRules(all)
		return nil, err
	}
	for _, n := range networks {
		rule := netlink.NewRule()
		rule.Priority, rule.Table, rule.Protocol = rulePriority, unix.RT_TABLE_MAIN, ruleOwner
		rule.Dst = &net.IPNet{IP: n.Addr().AsSlice(), Mask: net.CIDRMask(n.Bits(), 32)}
		if slices.ContainsFunc(all, func(r netlink.Rule) bool { return ours(r) && r.Dst != nil && r.Dst.String() == rule.Dst.String() }) {
			continue
		}
		missing = append(missing, "rule to "+n.String())
		if e := netlink.RuleAdd(rule); e != nil && !errors.Is(e, syscall.EEXIST) {
			err = errors.Join(err, fmt.Errorf("host: rule to %s: %w", n, e))
		}
	}
	return missing, err
}

// DropRules removes the rules that Keep has added, and returns them.
func DropRules() (removed []string, err error) {
	all, err := netlink.RuleList(netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("host: rules of routing: %w", err)
	}
	return dropRules(all)
}

func dropRules(all []netlink.Rule) (removed []string, err error) {
	for _, r := range all {
		if !ours(r) {
			continue
		}
		if e := netlink.RuleDel(&r); e != nil && !errors.Is(e, syscall.ENOENT) {
			err = errors.Join(err, fmt.Errorf("host: rule to %s: %w; ip rule del priority %d to %s", r.Dst, e, rulePriority, r.Dst))
			continue
		}
		removed = append(removed, "rule to "+r.Dst.String())
	}
	return removed, err
}

func ours(r netlink.Rule) bool { return r.Protocol == ruleOwner && r.Priority == rulePriority }

// ofOthers reports whether a rule leads to a table that a program has made.
func ofOthers(r netlink.Rule) bool {
	return !ours(r) && !slices.Contains([]int{unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN, unix.RT_TABLE_DEFAULT}, r.Table)
}
