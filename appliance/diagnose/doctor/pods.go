package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/appliance/addons/podview"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/engine"
	"rivulet/appliance/health"
)

var podNetwork = Probe{Kind: health.PodNetwork, Title: "what pods reach of this node", Every: always, Heals: true, Run: probePodNetwork}

// Addresses of the pods' network that no pod gets: they are next to the tunnel's.
func supervisorsView() netip.Addr { return fixed.TunnelAddress.Prev() }
func doctorsView() netip.Addr     { return supervisorsView().Prev() }

func probePodNetwork(ctx context.Context, e *Env) Result {
	node := e.Node
	if !node.IsValid() {
		st, running := e.running(ctx)
		if node, _ = netip.ParseAddr(st.NodeAddress); !running || !node.IsValid() {
			return e.unasked("rivulet is not running", nil)
		}
	}
	found, err := e.AsPod(ctx, podview.Node{
		API: netip.AddrPortFrom(node, engine.PortAPI), DNS: netip.AddrPortFrom(node, fixed.DNSPort),
		APIService: netip.AddrPortFrom(fixed.ServiceCIDR.Addr().Next(), 443), DNSService: netip.AddrPortFrom(fixed.ClusterDNS, 53),
	})
	switch {
	case err != nil:
		return Skipf("cannot be asked: %v", err)
	case found == podview.Fine:
		return Passf("cluster DNS and the API server, by their Services")
	case found == podview.Unled:
		r := Failf("wait half a minute: the rules are made anew by themselves; find out which program removes them, and restart rivulet if they do not come back",
			"the Services of cluster DNS or of the API server lead nowhere: another program has removed rules of kube-proxy (iptables -F, nft flush ruleset)")
		r.Fix = resync(e)
		return r
	case found == podview.Dropped:
		return Failf(allowPods(ctx, e), "a firewall of this device drops what pods send to it: pods have no cluster DNS or no API server")
	}
	return Skipf("there is no pod network yet, or nothing answers the device itself either")
}

// allowPods is the command that accepts packets from pods and, through the tunnel, from peers.
func allowPods(ctx context.Context, e *Env) string {
	switch {
	case e.process("firewalld"):
		return "firewall-cmd --permanent --zone=trusted --add-interface=" + fixed.Bridge + " --add-interface=" + fixed.Tunnel + " && firewall-cmd --reload"
	case strings.Contains(e.read("/etc/ufw/ufw.conf"), "ENABLED=yes"):
		return "ufw allow in on " + fixed.Bridge + " && ufw allow in on " + fixed.Tunnel
	}
	var cures []string
	chains, _ := e.Closed()
	legacy := false
	for _, chain := range chains {
		if chain.Name == iptablesInput {
			legacy = true
		} else if !chain.Forward {
			cures = append(cures, fmt.Sprintf(`nft insert rule %s iifname '{ "%s", "%s" }' accept`, chain.Name, fixed.Bridge, fixed.Tunnel))
		}
	}
	if legacy || len(cures) == 0 { // by its policy, or by one rule
		for _, name := range []string{fixed.Bridge, fixed.Tunnel} {
			cures = append(cures, "iptables -I INPUT -i "+name+" -j ACCEPT")
		}
	}
	return strings.Join(cures, "; ") + "; and the same in what loads these rules at boot"
}

var serviceRules = Probe{Kind: health.ServiceRules, Title: "rules of Services", Every: seldom, Heals: true, Run: probeServiceRules}

// leadTo are the chains of kube-proxy to which rules elsewhere lead, by table.
var leadTo = map[string][]string{
	"filter": {"KUBE-FORWARD", "KUBE-NODEPORTS", "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"},
	"nat":    {"KUBE-SERVICES", "KUBE-POSTROUTING"},
}

// neverEmpty are the chains that always have a rule.
var neverEmpty = []string{"filter KUBE-FORWARD", "nat KUBE-SERVICES", "nat KUBE-POSTROUTING"}

// probeServiceRules finds chains that were flushed but not deleted, whose loss no packet shows: source ranges,
// refusals, masquerading. kube-proxy itself only detects the deletion of chains.
func probeServiceRules(ctx context.Context, e *Env) Result {
	out, err := e.Exec(ctx, "iptables-save")
	if err != nil {
		return e.unasked("the rules cannot be read", err)
	}
	there, led, filled := map[string]bool{}, map[string]bool{}, map[string]bool{}
	table := ""
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "*") && len(words) == 1:
			table = words[0][1:]
		case strings.HasPrefix(line, ":KUBE-"):
			there[table+" "+words[0][1:]] = true
		case strings.HasPrefix(line, "-A ") && len(words) > 3:
			filled[table+" "+words[1]] = true
			if at := slices.Index(words, "-j"); at > 0 && at+1 < len(words) {
				led[table+" "+words[at+1]] = true
			}
		}
	}
	var gone []string
	for _, table := range []string{"filter", "nat"} {
		for _, chain := range leadTo[table] {
			name := table + " " + chain
			if there[name] && (!led[name] || slices.Contains(neverEmpty, name) && !filled[name]) {
				gone = append(gone, name)
			}
		}
	}
	if len(gone) == 0 {
		return Passf("none is missing that kube-proxy has made")
	}
	r := Failf("wait half a minute: they are made anew by themselves; find out which program removes them, and restart rivulet if they do not come back",
		"another program has removed rules of kube-proxy (iptables -F): those of %s", strings.Join(gone, ", "))
	r.Fix = resync(e)
	return r
}

// resync makes kube-proxy write all its rules: it checks every 3 s for a chain of its own that only a flush removes.
func resync(e *Env) *Fix {
	return &Fix{Says: "has kube-proxy write all its rules anew", Do: func(ctx context.Context) error {
		var failed error
		done := false
		for _, tool := range []string{"iptables", "iptables-nft", "iptables-legacy",
			filepath.Join(e.State, "bundle/current/netfilter/nft/iptables"), filepath.Join(e.State, "bundle/current/netfilter/legacy/iptables")} {
			for _, table := range []string{"nat", "filter", "mangle"} { // kube-proxy checks the last one
				_, err := e.Exec(ctx, tool, "-w", "5", "-t", table, "-X", "KUBE-PROXY-CANARY")
				done, failed = done || err == nil, errors.Join(failed, err)
			}
		}
		if done {
			return nil
		}
		return fmt.Errorf("doctor: no iptables has removed kube-proxy's chain KUBE-PROXY-CANARY: %w", failed)
	}}
}
