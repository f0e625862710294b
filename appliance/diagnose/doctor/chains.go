package doctor

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"rivulet/appliance/config/fixed"
)

// Chain is a chain of nftables that refuses what no rule of it is for: by its policy, or by a last rule without
// conditions.
type Chain struct {
	// Name is family, table and chain, as nft has it.
	Name string
	// Forward: of what is forwarded; else of what is for this machine.
	Forward bool
	// Opened: a rule of its table names the tunnel's port, or, of what is forwarded, an interface or the network of pods.
	Opened bool
}

// Closed reads them, those of iptables among them, in the process's own network namespace.
func (system) Closed() (out []Chain, err error) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.CloseLasting() }()
	chains, err := c.ListChains()
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, ch := range chains {
		family := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyINet: "inet"}[ch.Table.Family]
		forward := ch.Hooknum != nil && *ch.Hooknum == *nftables.ChainHookForward
		if family == "" || ch.Hooknum == nil || !forward && *ch.Hooknum != *nftables.ChainHookInput || strings.HasPrefix(ch.Table.Name, "rivulet") {
			continue
		}
		rules, err := c.GetRules(ch.Table, ch)
		failed = append(failed, err)
		if !(ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop || len(rules) > 0 && refusesAll(rules[len(rules)-1])) {
			continue
		}
		found := Chain{Name: strings.Join([]string{family, ch.Table.Name, ch.Name}, " "), Forward: forward}
		for _, other := range chains { // a rule may be in a chain that this one leads to
			if other.Table.Name != ch.Table.Name || other.Table.Family != ch.Table.Family {
				continue
			}
			rules, err := c.GetRules(ch.Table, other)
			failed = append(failed, err)
			found.Opened = found.Opened || slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return opens(c, r, forward) })
		}
		out = append(out, found)
	}
	return out, errors.Join(failed...)
}

func refusesAll(r *nftables.Rule) bool {
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Reject:
			return true
		case *expr.Verdict:
			return e.Kind == expr.VerdictDrop
		default:
			return false
		}
	}
	return false
}

func opens(c *nftables.Conn, r *nftables.Rule, forward bool) bool {
	port, network := []byte{fixed.ControlPort >> 8, fixed.ControlPort & 0xff}, fixed.PodCIDR.Addr().AsSlice()[:fixed.PodCIDR.Bits()/8]
	is := func(data []byte) bool {
		if !forward {
			return bytes.Equal(data, port)
		}
		return bytes.HasPrefix(data, network) || bytes.HasPrefix(data, []byte(fixed.Bridge))
	}
	var from []byte // of a range in two comparisons
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Cmp:
			switch {
			case e.Op == expr.CmpOpGte:
				from = e.Data
			case e.Op == expr.CmpOpLte && !forward && len(from) == len(port):
				if bytes.Compare(from, port) <= 0 && bytes.Compare(port, e.Data) <= 0 {
					return true
				}
			case e.Op == expr.CmpOpEq && is(e.Data):
				return true
			}
		case *expr.Range:
			if !forward && len(e.FromData) == len(port) && bytes.Compare(e.FromData, port) <= 0 && bytes.Compare(port, e.ToData) <= 0 {
				return true
			}
		case *expr.Lookup:
			set, err := c.GetSetByName(r.Table, e.SetName)
			if err != nil {
				continue
			}
			elements, _ := c.GetSetElements(set)
			within := false // of an interval that begins before it
			slices.SortFunc(elements, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
			for _, el := range elements {
				if is(el.Key) && !el.IntervalEnd {
					return true
				}
				if len(el.Key) == len(port) && bytes.Compare(el.Key, port) <= 0 {
					within = !el.IntervalEnd
				}
			}
			if !forward && set.Interval && within {
				return true
			}
		}
	}
	return false
}
