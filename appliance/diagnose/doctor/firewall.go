package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"rivulet/appliance/config/fixed"
	rules "rivulet/appliance/engine/iptables"
	"rivulet/appliance/health"
)

var firewall = Probe{Kind: health.Firewall, Title: "firewall of this device", Run: probeFirewall}

func probeFirewall(ctx context.Context, e *Env) Result {
	const open = "UDP 7442, TCP 7442 and UDP 5353"
	pods, services := fixed.PodCIDR.String(), fixed.ServiceCIDR.String()
	if e.process("firewalld") {
		out, err := e.Exec(ctx, "firewall-cmd", "--list-ports")
		if err == nil && lists(out, "udp") && lists(out, "tcp") {
			return Passf("firewalld lets peers in")
		}
		return Warnf("firewall-cmd --permanent --add-port=7442/udp --add-port=7442/tcp --add-service=mdns && firewall-cmd --permanent --zone=trusted --add-source="+pods+" --add-source="+services+" && "+allowPods(ctx, e),
			"firewalld is on and does not name %s: peers may not get in, nor pods out", open)
	}
	if strings.Contains(e.read("/etc/ufw/ufw.conf"), "ENABLED=yes") {
		rules := e.read("/etc/ufw/user.rules")
		if strings.Contains(rules, "7442") {
			return Passf("ufw lets peers in")
		}
		return Warnf("ufw allow 7442 && ufw allow 5353/udp && ufw allow from "+pods+" && ufw allow from "+services+" && "+allowPods(ctx, e),
			"ufw is on and does not name %s: peers may not get in, nor pods out", open)
	}
	out, err := e.Exec(ctx, "iptables-save", "-t", "filter")
	if err != nil {
		return e.unasked("the rules cannot be read", err)
	}
	table := rules.Table(out)
	if table.Closes("INPUT", func(rule string) bool { return strings.Contains(rule, "7442") && strings.HasSuffix(rule, "ACCEPT") }) {
		return Warnf("iptables -I INPUT -p udp -m multiport --dports 7442,5353 -j ACCEPT; iptables -I INPUT -p tcp --dport 7442 -j ACCEPT; "+allowPods(ctx, e),
			"what is not allowed is dropped (policy or last rule of INPUT), and nothing before allows %s", open)
	}
	if table.Closes("FORWARD", func(rule string) bool {
		return strings.HasSuffix(rule, "FLANNEL-FWD") || strings.Contains(rule, pods) && strings.HasSuffix(rule, "ACCEPT")
	}) {
		return Warnf("start rivulet, which allows pods; if they stay cut off: iptables -I FORWARD -s "+pods+" -j ACCEPT; iptables -I FORWARD -d "+pods+" -j ACCEPT",
			"what is forwarded is dropped (policy of FORWARD, as Docker sets it, or its last rule), and nothing before allows pods")
	}
	return native(e)
}

// iptablesInput is the chain of iptables in nftables.
const iptablesInput = "ip filter INPUT"

// native judges chains that no iptables has made.
func native(e *Env) Result {
	chains, err := e.Closed()
	if err != nil {
		return e.unasked("the rules of nftables cannot be read", err)
	}
	var closed, cures []string
	for _, c := range chains {
		if c.Opened || c.Name == iptablesInput || c.Name == "ip filter FORWARD" {
			continue
		}
		closed = append(closed, c.Name)
		if c.Forward {
			for _, way := range []string{"iifname", "oifname"} {
				cures = append(cures, fmt.Sprintf(`nft insert rule %s %s '{ "%s", "%s" }' accept`, c.Name, way, fixed.Bridge, fixed.Tunnel))
			}
			continue
		}
		cures = append(cures, "nft insert rule "+c.Name+" udp dport '{ 7442, 5353 }' accept", "nft insert rule "+c.Name+" tcp dport 7442 accept",
			fmt.Sprintf(`nft insert rule %s iifname '{ "%s", "%s" }' accept`, c.Name, fixed.Bridge, fixed.Tunnel))
	}
	if len(closed) > 0 {
		return Warnf(strings.Join(cures, "; ")+"; and the same in /etc/nftables.conf", "nftables drops what no rule of %s is for, and none is for peers or pods", strings.Join(closed, ", "))
	}
	return Passf("none that is known")
}

// lists reports whether firewalld's list of ports has the tunnel's: "22/tcp 1025-65535/udp".
func lists(ports, protocol string) bool {
	for _, f := range strings.Fields(ports) {
		numbers, is, _ := strings.Cut(f, "/")
		first, last, isRange := strings.Cut(numbers, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if is == protocol && err1 == nil && err2 == nil && from <= fixed.ControlPort && fixed.ControlPort <= to {
			return true
		}
	}
	return false
}

// process reports whether a program of this name runs.
func (e *Env) process(name string) bool {
	return slices.ContainsFunc(e.glob("/proc/[0-9]*/comm"), func(f string) bool { return e.read(f) == name })
}
