package cleanup

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// ourChains are the prefixes of the chains of kube-proxy, the kubelet and flannel.
var ourChains = []string{"KUBE-", "FLANNEL-"}

// The chains of published ports are shared by all CNI networks of a machine: Podman and nerdctl have theirs there, too.
const (
	hostPorts   = "CNI-HOSTPORT-"     // chains that lead to those of the pods, and mark their packets
	hostPortsTo = "CNI-HOSTPORT-DNAT" // the chain with a rule for each pod or container
	hostPort    = "CNI-DN-"           // the chains of pods and containers
	ofOurs      = `name: \"` + podNetwork + `\"`
)

// rules removes these chains from every table of every iptables on the machine or in the bundle, and rules elsewhere
// that lead to them. Everything else stays, counters too.
func (c *cleaner) rules(ctx context.Context) {
	if c.foreign != "" {
		return // it has chains of the same names
	}
	found := false
	bundled := filepath.Join(c.State, "bundle/current/netfilter")
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, tool := range []string{family, family + "-nft", family + "-legacy", filepath.Join(bundled, "nft", family), filepath.Join(bundled, "legacy", family)} {
			if _, err := exec.LookPath(tool + "-save"); err != nil {
				continue
			}
			found = true
			n, err := removeRules(ctx, tool)
			switch {
			case err != nil && tool == family: // the kernel may lack support for the others
				c.left("%v; look at %s-save", err, tool)
			case n > 0:
				c.removed("%s chains (%d)", tool, n)
			}
		}
	}
	if !found {
		c.left("rules of the firewall, if there are any: iptables is not in PATH; install iptables and run this again, or restart the machine")
	}
}

func removeRules(ctx context.Context, tool string) (chains int, err error) {
	saved, err := exec.CommandContext(ctx, tool+"-save").Output()
	if err != nil {
		return 0, fmt.Errorf("cleanup: %s-save: %w", tool, err)
	}
	script, chains := withoutOurs(string(saved))
	if script == "" {
		return 0, nil
	}
	cmd := exec.CommandContext(ctx, tool+"-restore", "--noflush")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("cleanup: %s-restore: %w: %s", tool, err, bytes.TrimSpace(out))
	}
	return chains, nil
}

// withoutOurs converts the output of iptables-save to the input of iptables-restore --noflush that removes the chains,
// "" if there are none.
func withoutOurs(saved string) (script string, chains int) {
	var out strings.Builder
	var t ruleTable
	for line := range strings.Lines(saved) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			t = ruleTable{name: line}
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			t.chains = append(t.chains, name)
		case strings.HasPrefix(line, "-A "):
			chain, rest, _ := strings.Cut(line[3:], " ")
			t.rules = append(t.rules, rule{chain, target(rest), line[3:]})
		case line == "COMMIT":
			chains += t.remove(&out)
		}
	}
	return out.String(), chains
}

// ruleTable is one table of iptables-save.
type ruleTable struct {
	name   string
	chains []string
	rules  []rule
}

type rule struct {
	chain, to string // to is the chain that it leads to
	text      string // with its chain
}

// remove writes what removes the chains of ours from the table, and returns their number.
func (t ruleTable) remove(out *strings.Builder) int {
	var ours, jumps []string
	for _, name := range t.chains {
		if t.isOurs(name) {
			ours = append(ours, name)
		}
	}
	for _, r := range t.rules {
		if !slices.Contains(ours, r.chain) && t.isOurs(r.to) {
			jumps = append(jumps, "-D "+r.text)
		}
	}
	if len(ours)+len(jumps) == 0 {
		return 0
	}
	out.WriteString(t.name + "\n")
	for _, j := range jumps {
		out.WriteString(j + "\n")
	}
	for _, name := range ours { // all are flushed before one is removed, because they refer to each other
		out.WriteString("-F " + name + "\n")
	}
	for _, name := range ours {
		out.WriteString("-X " + name + "\n")
	}
	out.WriteString("COMMIT\n")
	return len(ours)
}

// isOurs reports whether a chain is Rivulet's. That of a published port says whose it is in the rule that leads to it;
// those above it are ours while they lead to nobody else's.
func (t ruleTable) isOurs(chain string) bool {
	named := func(r rule) bool { return strings.Contains(r.text, ofOurs) }
	switch {
	case strings.HasPrefix(chain, hostPort):
		return slices.ContainsFunc(t.rules, func(r rule) bool { return r.to == chain && named(r) })
	case strings.HasPrefix(chain, hostPorts):
		return !slices.ContainsFunc(t.rules, func(r rule) bool { return r.chain == hostPortsTo && !named(r) })
	}
	return slices.ContainsFunc(ourChains, func(p string) bool { return strings.HasPrefix(chain, p) })
}

var (
	quoted = regexp.MustCompile(`"(?:\\.|[^"\\])*"`)
	leads  = regexp.MustCompile(` (?:-j|-g|--jump|--goto) (\S+)`)
)

// target is where a rule leads to. A quoted comment may contain anything.
func target(rule string) string {
	if m := leads.FindStringSubmatch(" " + quoted.ReplaceAllString(rule, `""`)); m != nil {
		return m[1]
	}
	return ""
}
