package trace

import (
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// parseRules finds kube-proxy's rules for a cluster IP and port in the output of iptables-save, of all tables.
func parseRules(text string, ip netip.Addr, port corev1.ServicePort) Rules {
	r := Rules{Read: true}
	want := map[string]string{"-d": netip.PrefixFrom(ip, ip.BitLen()).String(), "-p": strings.ToLower(string(port.Protocol)), "--dport": strconv.Itoa(int(port.Port))}
	if port.Protocol == "" {
		want["-p"] = "tcp"
	}
	jumps := map[string][]string{}         // from a chain to others
	leads := map[string][]netip.AddrPort{} // destinations of a chain
	chain := ""
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 4 || words[0] != "-A" || !strings.HasPrefix(words[1], "KUBE-") {
			continue
		}
		options := map[string]string{}
		for i := 2; i+1 < len(words); i++ {
			if strings.HasPrefix(words[i], "-") {
				options[words[i]] = words[i+1]
			}
		}
		to := options["-j"]
		if words[1] == "KUBE-SERVICES" {
			if options["-d"] != want["-d"] || options["-p"] != want["-p"] || options["--dport"] != want["--dport"] {
				continue
			}
			switch {
			case to == "REJECT":
				r.Rejects = true
			case strings.HasPrefix(to, "KUBE-SVC-"), strings.HasPrefix(to, "KUBE-SVL-"), strings.HasPrefix(to, "KUBE-EXT-"):
				chain, r.Leads = to, true
			}
			continue
		}
		if to == "DNAT" {
			if a, err := netip.ParseAddrPort(options["--to-destination"]); err == nil {
				leads[words[1]] = append(leads[words[1]], a)
			}
		} else if strings.HasPrefix(to, "KUBE-SEP-") {
			jumps[words[1]] = append(jumps[words[1]], to)
		}
	}
	for _, sep := range jumps[chain] {
		r.To = append(r.To, leads[sep]...)
	}
	return r.unique()
}

// unique removes destinations that are listed several times, such as those of session affinity.
func (r Rules) unique() Rules {
	seen := map[netip.AddrPort]bool{}
	var to []netip.AddrPort
	for _, a := range r.To {
		if !seen[a] {
			seen[a] = true
			to = append(to, a)
		}
	}
	r.To = to
	return r
}
