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
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"rivulet/appliance/health"
	"rivulet/fabric/nft"
	sysctls "rivulet/fabric/sysctl"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

func TestMain(m *testing.M) {
	testns.Enter()
	os.Exit(m.Run())
}

// What another program takes of the node's address, of routes and settings is back in two
// seconds, and what cannot be put back is reported.
func TestOthersChangeTheNetwork(t *testing.T) {
	const inside = "HOST_INSIDE"
	if os.Getenv(inside) == "" {
		out, err := exec.CommandContext(t.Context(), testns.Program(t, testns.New(t).NS, inside+"=1"), "-test.run=^"+t.Name()+"$", "-test.v").CombinedOutput()
		if t.Logf("%s", out); err != nil {
			t.Error(err)
		}
		return
	}
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}); err != nil {
		t.Fatal(err)
	}
	if err := testns.Give("cni0", "10.42.0.1/24"); err != nil {
		t.Fatal(err)
	}
	problems := &health.Tracker{}
	n := Network{Node: netip.MustParseAddr("100.127.7.7"), Services: netip.MustParsePrefix("10.43.0.0/16"), Bridge: "cni0", Rules: nft.NewGuard(0, slog.New(slog.DiscardHandler)),
		Health: problems, Log: slog.New(slog.NewTextHandler(os.Stdout, nil))}
	keep := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.Keep(ctx, func() {}) }()
		return func() {
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	}
	n.Further = &Further{Nodes: netip.MustParsePrefix("100.127.0.0/16"), Own: n.Node}
	virtual, release, err := n.Further.Take("b")
	if err != nil {
		t.Fatal(err)
	}
	stop := keep()
	defer func() { stop() }()
	index := func(name string) int {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		return l.Attrs().Index
	}
	routes := func(cidr, by string) []netlink.Route {
		_, dst, err := net.ParseCIDR(cidr)
		if err != nil {
			t.Fatal(err)
		}
		all, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: dst, LinkIndex: index(by)}, netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	hasRoute := func(cidr, by string) func() bool { return func() bool { return len(routes(cidr, by)) == 1 } }
	noRoute := func(cidr, by string) func() error {
		return func() error { return netlink.RouteDel(&routes(cidr, by)[0]) }
	}
	sysctl := func(name string) string {
		value, err := os.ReadFile("/proc/sys/net/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(value))
	}
	node := &netlink.Addr{IPNet: &net.IPNet{IP: n.Node.AsSlice(), Mask: net.CIDRMask(32, 32)}}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	there := func() bool {
		all, err := netlink.AddrList(lo, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all, func(a netlink.Addr) bool { return a.IPNet.String() == single(virtual).IPNet.String() })
	}
	for _, c := range []struct {
		name string
		what func() error
		back func() bool
	}{
		{"ip addr del, of a virtual node", func() error { return netlink.AddrDel(lo, single(virtual)) }, there},
		{"ip addr del, of the node", func() error { return netlink.AddrDel(lo, node) }, func() bool {
			all, err := netlink.AddrList(lo, netlink.FAMILY_V4)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range all {
				if a.IPNet.String() == node.IPNet.String() {
					return hasRoute("10.43.0.0/16", "lo")()
				}
			}
			return false
		}},
		{"ip route del, to Services", noRoute("10.43.0.0/16", "lo"), hasRoute("10.43.0.0/16", "lo")},
		{"ip route del, to pods", noRoute("10.42.0.0/24", "cni0"), hasRoute("10.42.0.0/24", "cni0")},
		{"sysctl ip_forward", func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0) }, func() bool { return sysctl("ipv4/ip_forward") == "1" }},
		{"sysctl bridge-nf-call-iptables", func() error { return os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("0"), 0) },
			func() bool { return sysctl("bridge/bridge-nf-call-iptables") == "1" }},
	} {
		await.True(t, 2*time.Second, c.name+", before", c.back)
		if err := c.what(); err != nil {
			t.Fatal(err)
		}
		await.True(t, 2*time.Second, c.name+", and it is back", c.back)
	}
	if release(); there() {
		t.Error("the address of a virtual node that is gone is left")
	}
	if err := problems.Problems(); len(err) > 0 {
		t.Error(err)
	}

	// Nothing is written where nothing is missing: own writes are changes, too.
	updates, done := make(chan netlink.RouteUpdate, 64), make(chan struct{})
	defer close(done)
	if err := netlink.RouteSubscribe(updates, done); err != nil {
		t.Fatal(err)
	}
	for quiet := time.After(1500 * time.Millisecond); quiet != nil; {
		select {
		case u := <-updates:
			if u.Dst != nil && u.Dst.IP.To4() != nil {
				t.Fatalf("a route is written though nothing is missing: %v", u.Route)
			}
		case <-quiet:
			quiet = nil
		}
	}

	stop()
	settings = append(settings, sysctls.Setting{Name: "kernel/ostype", Value: "other"}) // which nobody can change
	stop = keep()
	await.True(t, 3*time.Second, "what cannot be put back is reported", func() bool {
		p := problems.Problems()
		return len(p) == 1 && strings.Contains(p[0].Text, "kernel.ostype")
	})
}
