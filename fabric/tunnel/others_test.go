package tunnel

import (
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"rivulet/fabric/nft"
	"rivulet/test/harness/await"
)

// What another program takes from the tunnel's interface is back in two seconds: routes, the
// address, settings, and that it is up.
func TestOthersChangeTheInterface(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	node := w.a.node
	v := converse(t, w)
	link := func() (l netlink.Link) {
		node.must(func() (err error) { l, err = netlink.LinkByName("riv0"); return err })
		return l
	}
	route := &netlink.Route{Dst: ipNet(bSeenByA), LinkIndex: link().Attrs().Index, Scope: netlink.SCOPE_LINK}
	routed := func() bool {
		var all []netlink.Route
		node.must(func() (err error) {
			all, err = netlink.RouteListFiltered(netlink.FAMILY_V4, route, netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF)
			return err
		})
		return len(all) == 1 && all[0].Priority == routeMetric
	}
	own := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(ownAddress, 32))}
	for _, c := range []struct {
		name string
		what func() error
		back func() bool
	}{
		{"ip route del", func() error { return netlink.RouteDel(route) }, routed},
		{"ip addr del", func() error { return netlink.AddrDel(link(), own) }, func() bool {
			var all []netlink.Addr
			node.must(func() (err error) { all, err = netlink.AddrList(link(), netlink.FAMILY_V4); return err })
			return len(all) == 1 && all[0].IPNet.String() == own.IPNet.String() && routed()
		}},
		{"ip link set down", func() error { return netlink.LinkSetDown(link()) }, func() bool { return link().Attrs().Flags&net.FlagUp != 0 && routed() }},
		{"sysctl rp_filter", func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/riv0/rp_filter", []byte("1"), 0) }, func() bool {
			var value []byte
			node.must(func() (err error) { value, err = os.ReadFile("/proc/sys/net/ipv4/conf/riv0/rp_filter"); return err })
			return strings.TrimSpace(string(value)) == "2"
		}},
	} {
		if !c.back() {
			t.Fatalf("%s: it is not there before", c.name)
		}
		node.must(c.what)
		await.True(t, 2*time.Second, c.name+" is put back", c.back)
		v.goesOn(reachLimit)
	}
}

// After nft flush ruleset a peer does not reach this node for longer than two seconds, and no
// pod either until the supervisor comes to it.
func TestOthersFlushTheRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	v := converse(t, w)
	answer(w.a.node.listen(":6443"))
	answer(w.a.pod.listen(":80"))
	reaches := func(addr string) bool {
		c, err := w.b.node.dial("tcp4", addr, 300*time.Millisecond)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	if !reaches("10.201.0.5:80") || reaches("10.201.0.1:6443") {
		t.Fatal("the test itself does not work")
	}
	c, err := nft.Open(int(w.a.node.ns))
	if err != nil {
		t.Fatal(err)
	}
	c.FlushRuleset()
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	await.True(t, 2*time.Second, "the node is closed to peers again", func() bool { return !reaches("10.201.0.1:6443") })
	await.True(t, 2*time.Second, "pods are closed to peers", func() bool { return !reaches("10.201.0.5:80") })
	if reaches("10.201.0.1:6443") {
		t.Error("the node is open again")
	}
	v.goesOn(reachLimit)
}

// With the supervisor hung or down, tenants whose rules are flushed have no network; others
// have theirs.
func TestTenantsWithoutRulesHaveNoNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	node, tenant, own := w.a.node, newRoom(t), newRoom(t)
	node.Bridge("br0", "10.44.0.1/24")
	node.Plug("br0", "veth1", tenant.Room, "10.44.0.2/24", "10.44.0.1")
	node.Plug("br0", "veth2", own.Room, "10.44.0.3/24", "10.44.0.1")
	tenant.Listen(":80")
	node.must(func() error {
		l, err := netlink.LinkByName("veth1")
		if err != nil {
			return err
		}
		return netlink.LinkSetAlias(l, nft.TenantAlias+"alice")
	})
	rules := nft.NewGuard(int(node.ns), slog.New(slog.DiscardHandler)).Tables(nft.Isolation, nftables.TableFamilyIPv4, nftables.TableFamilyBridge)
	nothing := func(c *nftables.Conn, t *nftables.Table) {}
	programs := []nft.Program{{Family: nftables.TableFamilyIPv4, Base: nothing}, {Family: nftables.TableFamilyBridge, Base: nothing}}
	write := func() {
		t.Helper()
		rules.Forget()
		if _, err := rules.Apply(programs); err != nil {
			t.Fatal(err)
		}
	}
	write()
	await.True(t, 5*time.Second, "the tenant is reached", func() bool { return own.Reaches("", "10.44.0.2:80") })
	for begun := time.Now(); time.Since(begun) < 3*time.Second; { // two looks
		if !own.Reaches("", "10.44.0.2:80") {
			t.Fatal("closed though its rules stand")
		}
	}
	if _, err := rules.Apply(nil); err != nil { // and nobody puts them back
		t.Fatal(err)
	}
	await.True(t, 5*time.Second, "the tenant is closed", func() bool { return !own.Reaches("", "10.44.0.2:80") && !tenant.Reaches("", "10.42.0.5:7") })
	node.Listen(":81")
	if !own.Reaches("", "10.44.0.1:81") {
		t.Error("a pod of this cluster has no network either")
	}
	write() // the supervisor is back
	await.True(t, 5*time.Second, "the tenant is reached again", func() bool { return own.Reaches("", "10.44.0.2:80") })
}
