package iptables

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/nft"
)

const (
	// pollInterval is the interval of questions whether rules have changed; with kube-proxy's own interval, 3 s, all is back in 5.
	pollInterval = time.Second
	// forward and masquerade are flannel's names of these chains.
	forward, masquerade = "FLANNEL-FWD", "FLANNEL-POSTRTG"
	// canary is a chain of kube-proxy's, in these tables: it writes its rules again when the chain is gone
	// (k8s.io/kubernetes/pkg/proxy/iptables).
	canary = "KUBE-PROXY-CANARY"
)

var canaryTables = []string{"mangle", "nat", "filter"}

// PodRules are the rules of the host for the pods of this node.
type PodRules struct {
	// Pods is the pod CIDR of the cluster, Own this node's part.
	Pods, Own netip.Prefix
	// Tunnel is the interface of the tunnel; which packets it relays is for the tables of rivulet/fabric/reach.
	Tunnel string
	Log    *slog.Logger

	stands map[string]string // the rules of our chains, as the kernel listed them after the last write
	led    bool              // kube-proxy's rules have been seen
	legacy bool              // nothing tells of changes
	seen   uint32
	failed string
}

// Start writes the rules, and keeps them until ctx ends: what other programs remove comes back within pollInterval. The
// rule that lets forwarded packets of pods pass comes last, but before a rule that refuses everything: what the owner of
// the machine refuses of pods by rules of its own stays refused. A failure is logged, and tried again.
func (r *PodRules) Start(ctx context.Context) {
	r.begin(ctx)
	r.poll(ctx)
	go func() {
		for changes.Wait(ctx, pollInterval) {
			r.poll(ctx)
		}
	}()
}

func (r *PodRules) begin(ctx context.Context) {
	_, backend, _ := version(ctx, "iptables")
	r.legacy, r.stands = backend != NFT, map[string]string{}
}

func (r *PodRules) poll(ctx context.Context) {
	generation, err := nft.Generation()
	if err == nil && !r.legacy && generation == r.seen && r.failed == "" {
		return
	}
	again, err := r.ensure(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil && again != "":
		r.Log.Warn("rules of pods had been removed by another program; they are written again", "rules", again)
	case err != nil && err.Error() != r.failed:
		r.Log.Error("rules of pods cannot be written; it is tried again", "error", err)
	}
	// That of before the rules were read: what somebody changes meanwhile is read at the next poll.
	r.seen, r.failed = generation, ""
	if err != nil {
		r.failed = err.Error()
	}
}

// ensure writes what is missing, and returns which of the rules that stood had gone.
func (r *PodRules) ensure(ctx context.Context) (again string, err error) {
	saved, err := r.read(ctx)
	if err != nil {
		return "", err
	}
	var script strings.Builder
	var gone []string
	for _, c := range r.chains() {
		stood := r.stands[c.name]
		if stood != "" && stood == saved[c.table].rules(c.name) && c.stands(saved[c.table]) {
			continue
		}
		if stood != "" {
			gone = append(gone, c.name)
		}
		script.WriteString(c.script(saved[c.table]))
	}
	if script.Len() > 0 {
		if _, err := call(ctx, []byte(script.String()), "iptables-restore", "--noflush", "--wait"); err != nil {
			return "", err
		}
		if saved, err = r.read(ctx); err != nil {
			return "", err
		}
		for _, c := range r.chains() {
			if r.stands[c.name] = saved[c.table].rules(c.name); !c.stands(saved[c.table]) || r.stands[c.name] == "" {
				return "", fmt.Errorf("iptables: %s was written and is not there; another program may replace all rules again and again", c.name)
			}
		}
	}
	led := saved["nat"].has("-j KUBE-SERVICES") && saved["filter"].has("-j KUBE-FORWARD")
	if r.led && !led && saved["nat"].has(":"+canary+" ") {
		gone = append(gone, "kube-proxy's")
		for _, table := range canaryTables {
			if _, err := call(ctx, nil, "iptables", "-w", "-t", table, "-X", canary); err != nil {
				return "", err
			}
		}
	}
	r.led = led
	return strings.Join(gone, ", "), nil
}

func (r *PodRules) read(ctx context.Context) (map[string]Table, error) {
	out := map[string]Table{}
	for _, table := range []string{"filter", "nat"} {
		text, err := call(ctx, nil, "iptables-save", "-t", table)
		if err != nil {
			return nil, err
		}
		out[table] = Table(text)
	}
	return out, nil
}

// chain is one of our chains, and the chain of the kernel's that leads to it.
type chain struct {
	table, name, from string
	before            bool // what refuses everything
	rules             []string
}

func (r *PodRules) chains() []chain {
	pods, own := r.Pods.String(), r.Own.String()
	return []chain{
		{"filter", forward, "FORWARD", true, []string{
			"-s " + pods + " -j ACCEPT",
			"-d " + pods + " -j ACCEPT",
			"-i " + r.Tunnel + " -o " + r.Tunnel + " -j ACCEPT",
		}},
		{"nat", masquerade, "POSTROUTING", false, []string{ // flannel's (pkg/trafficmngr/iptables)
			"-m mark --mark 0x4000/0x4000 -j RETURN", // kube-proxy masquerades these
			"-s " + own + " -d " + pods + " -j RETURN",
			"-s " + pods + " -d " + own + " -j RETURN",
			"! -s " + pods + " -d " + own + " -j RETURN",
			"-s " + pods + " ! -d 224.0.0.0/4 -j MASQUERADE --random-fully",
			"! -s " + pods + " -d " + pods + " -j MASQUERADE --random-fully",
		}},
	}
}

// stands reports whether the kernel's chain leads to this one, in time.
func (c chain) stands(saved Table) bool {
	return slices.ContainsFunc(saved.chain(c.from), c.leads) && (!c.before || !saved.Closes(c.from, c.leads))
}

func (c chain) leads(rule string) bool { return strings.HasSuffix(rule, "-j "+c.name) }

// script is for iptables-restore: the chain is replaced, and led to unless it is already.
func (c chain) script(saved Table) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n:%s - [0:0]\n", c.table, c.name)
	for _, rule := range c.rules {
		fmt.Fprintf(&b, "-A %s %s\n", c.name, rule)
	}
	if !c.stands(saved) {
		for _, rule := range saved.chain(c.from) {
			if c.leads(rule) {
				fmt.Fprintf(&b, "-D %s %s\n", c.from, rule)
			}
		}
		put := "-A " + c.from
		if at := saved.closing(c.from, c.leads); c.before && at > 0 {
			put = fmt.Sprintf("-I %s %d", c.from, at)
		}
		fmt.Fprintf(&b, "%s -m comment --comment \"pods of rivulet\" -j %s\n", put, c.name)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// Table is the output of iptables-save of one table.
type Table string

func (t Table) has(part string) bool { return strings.Contains(string(t), part) }

// chain returns the rules of a chain, without the chain's name.
func (t Table) chain(name string) (rules []string) {
	for line := range strings.Lines(string(t)) {
		if rule, ok := strings.CutPrefix(strings.TrimSpace(line), "-A "+name+" "); ok {
			rules = append(rules, rule)
		}
	}
	return rules
}

func (t Table) rules(name string) string { return strings.Join(t.chain(name), "\n") }

// Closes reports whether a chain refuses what no rule is for, by its policy or by a rule without conditions, here or in a
// chain that it leads to, and no rule before that opens it.
func (t Table) Closes(name string, opens func(rule string) bool) bool {
	refused, decided := t.follow(name, opens, 0)
	return refused || !decided && t.has(":"+name+" DROP")
}

// closing is the number, from 1, of the first rule of a chain that refuses what no rule is for; 0 if there is none.
func (t Table) closing(name string, not func(rule string) bool) int {
	n := 0
	for _, rule := range t.chain(name) {
		if not(rule) {
			continue
		}
		n++
		if refused, _, _ := t.decide(rule, not, 0); refused {
			return n
		}
	}
	return 0
}

// follow returns how a packet fares for which no rule has a condition: refused, or decided otherwise.
func (t Table) follow(name string, opens func(rule string) bool, depth int) (refused, decided bool) {
	const deepest = 16 // the kernel refuses loops
	for _, rule := range t.chain(name) {
		refused, decided, returns := t.decide(rule, opens, depth)
		if refused || decided || returns || depth > deepest {
			return refused, decided
		}
	}
	return false, false
}

func (t Table) decide(rule string, opens func(rule string) bool, depth int) (refused, decided, returns bool) {
	if opens(rule) {
		return false, true, false
	}
	if rest, ok := strings.CutPrefix(rule, "-m comment --comment "); ok {
		if at := strings.LastIndex(rest, " -j "); at >= 0 && !strings.Contains(rest[:at], `" -`) {
			rule = rest[at+1:]
		}
	}
	to, ok := strings.CutPrefix(rule, "-j ")
	if !ok {
		if to, ok = strings.CutPrefix(rule, "-g "); !ok {
			return false, false, false // it has a condition
		}
	}
	switch target, _, _ := strings.Cut(to, " "); target {
	case "DROP", "REJECT":
		return true, true, false
	case "ACCEPT":
		return false, true, false
	case "RETURN":
		return false, false, true
	default:
		refused, decided = t.follow(target, opens, depth+1)
		return refused, decided, false
	}
}
