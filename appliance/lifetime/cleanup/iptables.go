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

// ourChains are the prefixes of the chains of kube-proxy, the kubelet, CNI plugins and flannel.
var ourChains = []string{"KUBE-", "CNI-", "FLANNEL-"}

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
	var table string
	var jumps, ours []string
	for line := range strings.Lines(saved) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table, jumps, ours = line, nil, nil
		case strings.HasPrefix(line, ":"):
			if name, _, _ := strings.Cut(line[1:], " "); isOurs(name) {
				ours = append(ours, name)
			}
		case strings.HasPrefix(line, "-A "):
			chain, rest, _ := strings.Cut(line[3:], " ")
			if !isOurs(chain) && isOurs(target(rest)) {
				jumps = append(jumps, "-D "+line[3:])
			}
		case line == "COMMIT" && len(jumps)+len(ours) > 0:
			out.WriteString(table + "\n")
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
			chains += len(ours)
		}
	}
	return out.String(), chains
}

func isOurs(chain string) bool {
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
