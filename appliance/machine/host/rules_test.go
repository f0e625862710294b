package host

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"rivulet/appliance/health"
	"rivulet/fabric/nft"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// given is the network of peers' addresses in a test.
type given struct{ atomic.Pointer[netip.Prefix] }

func (g *given) PodsBlock() netip.Prefix { return *g.Load() }

// A VPN that routes by rule, as an exit node of Tailscale, gets what goes to the Internet, and nothing of the cluster's. The
// rules are there as long as the VPN's are, and come back when somebody removes them.
func TestAVPNThatTakesEverything(t *testing.T) {
	const inside = "HOST_RULES_INSIDE"
	if os.Getenv(inside) == "" {
		out, err := exec.CommandContext(t.Context(), testns.Program(t, testns.New(t).NS, inside+"=1"), "-test.run=^"+t.Name()+"$", "-test.v").CombinedOutput()
		if t.Logf("%s", out); err != nil {
			t.Error(err)
		}
		return
	}
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	vpn := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "tailscale0"}, PeerName: "far"}
	must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}), netlink.LinkAdd(vpn), testns.Give("far", "192.0.2.1/32"),
		testns.Give("cni0", "10.42.0.1/24"), testns.Give("tailscale0", "100.90.1.2/32"))
	must(netlink.RouteAdd(&netlink.Route{LinkIndex: vpn.Attrs().Index, Table: 52, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}))
	var block given
	give := func(cidr string) { p := netip.MustParsePrefix(cidr); block.Store(&p) }
	give("240.0.0.0/5")
	n := Network{Node: netip.MustParseAddr("198.19.7.7"), Services: netip.MustParsePrefix("10.43.0.0/16"), Bridge: "cni0", Rules: nft.NewGuard(0, slog.New(slog.DiscardHandler)),
		Networks: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("198.19.0.0/16")},
		Ranges:   &block,
		Further:  &Further{}, Health: &health.Tracker{}, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Keep(ctx, func() {}) }()
	stop := sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	defer stop()
	rules := func() string {
		if p := n.Health.Problems(); len(p) > 0 {
			t.Error(p)
		}
		var out []string
		all, err := netlink.RuleList(netlink.FAMILY_V4)
		must(err)
		for _, r := range all {
			if ours(r) {
				out = append(out, r.Dst.String())
			}
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	toPod, toInternet := netip.MustParseAddr("10.42.0.9"), netip.MustParseAddr("1.1.1.1")
	await.True(t, 5*time.Second, "pods are reached", func() bool { return Leads(toPod, "cni0") })
	if s := rules(); s != "" {
		t.Errorf("there is no VPN, and there are rules: %s", s)
	}

	exit := netlink.NewRule()
	exit.Priority, exit.Table = 5270, 52
	must(netlink.RuleAdd(exit))
	kept := func() bool {
		return Leads(toPod, "cni0") && rules() == "10.42.0.0/16 10.43.0.0/16 198.19.0.0/16 240.0.0.0/5"
	}
	await.True(t, 5*time.Second, "pods are reached beside the VPN", kept)
	if !Leads(toInternet, "tailscale0") {
		t.Error("the Internet is not reached by the VPN")
	}
	all, err := netlink.RuleList(netlink.FAMILY_V4)
	must(err)
	for _, r := range all {
		if ours(r) && strings.HasPrefix(r.Dst.String(), "10.42.") {
			must(netlink.RuleDel(&r))
		}
	}
	await.True(t, 5*time.Second, "what somebody has removed is back", kept)

	give("10.128.0.0/9")
	await.True(t, 5*time.Second, "another block is followed", func() bool { return rules() == "10.128.0.0/9 10.42.0.0/16 10.43.0.0/16 198.19.0.0/16" })
	for _, bad := range []netip.Prefix{{}, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("fd00::/16")} {
		block.Store(&bad)
		await.True(t, 5*time.Second, "a block that is none gets no rule", func() bool { return rules() == "10.42.0.0/16 10.43.0.0/16 198.19.0.0/16" })
		give("240.9.0.0/5")
		await.True(t, 5*time.Second, "and the first again", kept)
	}
	before := netlink.NewRule() // as `ip rule add lookup 52`, which the kernel puts before all
	before.Table = 52
	must(netlink.RuleAdd(before))
	await.True(t, 5*time.Second, "a rule before ours is overtaken", kept)
	must(netlink.RuleDel(before))

	must(netlink.RuleDel(exit))
	await.True(t, 5*time.Second, "the VPN is off, and there are no rules", func() bool { return rules() == "" })
	must(netlink.RuleAdd(exit))
	await.True(t, 5*time.Second, "and on again", kept)
	stop()
	if removed, err := DropRules(); err != nil || len(removed) != 4 || rules() != "" {
		t.Errorf("%q, %v; left: %s", removed, err, rules())
	}
}
