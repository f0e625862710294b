package cleanup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"

	"rivulet/appliance/addons/clusterset/weights"
	policies "rivulet/appliance/addons/netpol"
	"rivulet/appliance/health"
	"rivulet/appliance/machine/firewall"
	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
	table "rivulet/fabric/reach"
	dataplane "rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
	"rivulet/offload/networkpolicy"
	"rivulet/offload/nodeagent/isolation"
	"rivulet/offload/nodeagent/peerrules"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// inside runs the test in a process of its own in a network namespace, and is true there.
func inside(t *testing.T) bool {
	const variable = "CLEANUP_INSIDE"
	if os.Getenv(variable) != "" {
		return true
	}
	program := testns.Program(t, testns.New(t).NS, variable+"=1")
	out, err := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$", "-test.v").CombinedOutput()
	if bytes.Contains(out, []byte("--- SKIP")) {
		t.Skipf("%s", out)
	}
	if t.Logf("%s", out); err != nil {
		t.Error(err)
	}
	return false
}

// owners are all that write tables on a device, with something to write.
type owners struct {
	mu     sync.Mutex
	failed map[string]error
	health health.Tracker // of the wall
}

func (o *owners) report(part string) func(error) {
	return func(err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.failed[part] = err
	}
}

func (o *owners) problem(part string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.health.Problems(); part == "wall" && len(p) > 0 {
		return errors.New(p[0].Text)
	}
	return o.failed[part]
}

type world struct{ is networkpolicy.World }

func (w world) World() (networkpolicy.World, bool) { return w.is, true }
func (world) Changed() (<-chan struct{}, func())   { return nil, func() {} }

const alice peer.ID = "alice"

// borrowed is a cluster with one pod at alice's, and one of alice's that it has opened.
type borrowed struct {
	report func(error)
	twins  func() map[string]peer.ID
	tenant netip.Addr
}

func (b borrowed) Twins() map[string]peer.ID { return b.twins() }

func (borrowed) Peers() []peerrules.Peer {
	return []peerrules.Peer{{ID: alice, Prefix: netip.MustParsePrefix("10.70.0.0/16"), Pods: 1, Known: true, Advertised: []netip.Addr{netip.MustParseAddr("10.70.0.5")}}}
}

func (b borrowed) Open() []table.Grant {
	return []table.Grant{{From: netip.MustParsePrefix("10.70.0.0/16"), Pods: []netip.Addr{b.tenant}}}
}

func (borrowed) Whole() []netip.Prefix               { return nil }
func (borrowed) Nodes() []netip.Prefix               { return nil }
func (borrowed) Others() map[peer.ID][]netip.Addr    { return nil }
func (borrowed) SetTenants(map[peer.ID][]netip.Addr) {}
func (b borrowed) Report(err error)                  { b.report(err) }

func (borrowed) SetOurs(map[peer.ID][]netip.Addr, map[peer.ID]map[peer.ID]netip.Prefix) map[netip.Addr]netip.Addr {
	return nil
}

func newOwners(t *testing.T) *owners {
	sh(t, `ip link set lo up; ip link add cni0 type bridge; ip addr add 10.42.0.1/24 dev cni0; ip link set cni0 up
		ip link add veth9 type veth peer name eth0; ip link set veth9 master cni0; ip link set veth9 up; ip link set eth0 up`)
	results := t.TempDir()
	text := `{"kind":"cniCacheV1","cniArgs":[["K8S_POD_NAMESPACE","lab-alice"],["K8S_POD_UID","1"]],"result":{"interfaces":[{"name":"veth9"},{"name":"eth0","mac":"02:00:00:00:00:09","sandbox":"/x"}],"ips":[{"address":"10.42.0.9/24"}]}}`
	if err := os.WriteFile(filepath.Join(results, "cbr0-9-eth0"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &owners{failed: map[string]error{}}
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	keeper := nft.NewGuard(0, log)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	run := func(name string, what func() error) {
		all.Go(func() {
			if err := what(); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	pods := netip.MustParsePrefix("10.42.0.0/16")
	tenant := netip.MustParseAddr("10.42.0.9")
	twins := func() map[string]peer.ID { return map[string]peer.ID{"lab-alice": alice} }
	run("keeper", func() error { return keeper.Run(ctx, func() {}) })
	run("wall", func() error {
		firewall.Run(ctx, firewall.Config{Own: []string{"lo"}, Networks: []netip.Prefix{pods}, Ports: []uint16{6443}, Guard: keeper, Health: &o.health}, nil)
		return ctx.Err()
	})
	run("policies", func() error {
		w := world{networkpolicy.World{Pods: []networkpolicy.Pod{{Namespace: "lab-alice", Name: "a", UID: "1", Addr: tenant}}}}
		deny := &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"}}}
		deny.Namespace, deny.Name = "lab-alice", "deny"
		w.is.Policies = []*networkingv1.NetworkPolicy{deny}
		return policies.Run(ctx, policies.Config{World: w, Results: results, Guard: keeper, Report: o.report("policies"), Log: log})
	})
	run("isolation", func() error {
		return isolation.Run(ctx, isolation.Config{Held: isolation.NewHeld(), Results: results, Pods: pods, DNS: netip.MustParseAddr("10.43.0.10"), Twins: twins,
			Endpoints: func(peer.ID) iter.Seq[netip.Addr] {
				return slices.Values([]netip.Addr{netip.MustParseAddr("10.71.0.4")})
			},
			Links: func() []peer.Link {
				return []peer.Link{{ID: alice, PeerMappedCIDR: netip.MustParsePrefix("10.70.0.0/16")}, {ID: "bob", PeerMappedCIDR: netip.MustParsePrefix("10.71.0.0/16")}}
			},
			Networks: func() []netip.Prefix { return nil }, Guard: keeper, Log: log,
			Report: func(err error, _ map[peer.ID]error) { o.report("isolation")(err) }})
	})
	run("reach", func() error {
		return peerrules.Run(ctx, peerrules.Config{Interface: "riv0", Own: netip.MustParseAddr("10.42.255.254"), Results: results,
			Cluster: borrowed{report: o.report("reach"), twins: twins, tenant: tenant}, Guard: keeper, Log: log})
	})
	split := weights.New(weights.Config{Pods: pods, Services: netip.MustParsePrefix("10.43.0.0/16"), Guard: keeper, Report: o.report("weights")})
	split.Set([]weights.Service{{Addr: netip.MustParseAddrPort("10.43.0.7:80"), Protocol: "TCP", Parts: []weights.Part{{Weight: 9, Endpoints: []netip.AddrPort{netip.AddrPortFrom(tenant, 80)}},
		{Weight: 1, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.70.0.5:80")}}}}})
	run("weights", func() error { return split.Run(ctx) })
	key, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	server := dataplane.NewServer("test", log)
	run("tunnel", func() error { server.Follow(ctx); return ctx.Err() })
	if err := server.Apply(dataplane.Config{PrivateKey: key, Port: 7442, Interface: "riv0", MTU: 1420, Address: netip.MustParseAddr("10.42.255.254"), ControlPort: 7442, PodCIDR: pods}); err != nil {
		t.Skipf("needs a TUN device and nf_tables: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

// standing is everything that stands, by table.
func standing(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, text := range strings.Split("\n"+sh(t, "nft -n list ruleset"), "\ntable ")[1:] {
		name, rest, _ := strings.Cut(text, " {")
		out[name] = strings.TrimSpace(rest)
	}
	return out
}

// Whatever another program does to any table that the product makes, it is back within two
// seconds, whole; and what cannot be put back is reported by its owner.
func TestEveryTableComesBack(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft: make deps")
	}
	if !inside(t) {
		return
	}
	o := newOwners(t)
	c, err := nft.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	names := func(all map[string]string) (names []string) {
		for name := range all {
			names = append(names, strings.Fields(name)[1])
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	// What is there when nothing changes any more.
	var want map[string]string
	since := time.Now()
	await.True(t, 30*time.Second, "the tables settle", func() bool {
		if now := standing(t); fmt.Sprint(now) != fmt.Sprint(want) {
			want, since = now, time.Now()
		}
		return time.Since(since) > time.Second
	})
	if got := names(want); fmt.Sprint(got) != fmt.Sprint(slices.Sorted(slices.Values(ourTables))) {
		t.Fatalf("there are %v, cleanup removes %v: each table has an owner here and goes with an uninstallation", got, ourTables)
	}
	each := func(what func(t *nftables.Table)) {
		tables, err := c.ListTables()
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range tables {
			what(table)
		}
	}
	eachChain := func(what func(ch *nftables.Chain)) {
		chains, err := c.ListChains()
		if err != nil {
			t.Fatal(err)
		}
		for _, chain := range chains {
			if chain.Hooknum != nil {
				what(chain)
			}
		}
	}
	for _, damage := range []struct {
		name string
		what func()
	}{
		{"nft flush ruleset", func() { c.FlushRuleset() }},
		{"nft delete table, of each", func() { each(func(t *nftables.Table) { c.DelTable(t) }) }},
		{"nft flush chain, of each", func() { eachChain(func(ch *nftables.Chain) { c.FlushChain(ch) }) }},
		{"nft delete chain, of each", func() { eachChain(func(ch *nftables.Chain) { c.FlushChain(ch); c.DelChain(ch) }) }},
		{"nft insert rule accept, in each", func() {
			eachChain(func(ch *nftables.Chain) {
				c.InsertRule(&nftables.Rule{Table: ch.Table, Chain: ch, Exprs: nft.Accept})
			})
		}},
		{"nft flush set, of each", func() {
			each(func(table *nftables.Table) {
				sets, err := c.GetSets(table)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range sets {
					c.FlushSet(s)
				}
			})
		}},
	} {
		damage.what()
		if err := c.Flush(); err != nil {
			t.Fatalf("%s: %v", damage.name, err)
		}
		await.NoError(t, t.Context(), 2*time.Second, damage.name+", and it is back", func() error {
			now := standing(t)
			for name, text := range want {
				if now[name] != text {
					return fmt.Errorf("of %s there is\n%s\nwant\n%s", name, now[name], text)
				}
			}
			return nil
		})
	}

	// Another program takes all the names for itself: nobody can write them.
	parts := []string{"wall", "policies", "isolation", "reach", "weights"}
	release := take(t, want)
	for _, part := range parts {
		await.True(t, 20*time.Second, "a problem of "+part, func() bool { return o.problem(part) != nil })
	}
	if _, err := os.Stat("/sys/class/net/riv0"); err == nil {
		t.Error("the tunnel goes on without its rules")
	}
	release()
	for _, part := range parts {
		await.True(t, 20*time.Second, "the end of the problem of "+part, func() bool { return o.problem(part) == nil })
	}
}

// take makes tables of the names that only their maker may change (NFT_TABLE_F_OWNER), in the
// place of those that are there.
func take(t *testing.T, tables map[string]string) (release func()) {
	t.Helper()
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	message := func(kind, family int, flags netlink.HeaderFlags, attributes ...netlink.Attribute) netlink.Message {
		raw, err := netlink.MarshalAttributes(attributes)
		if err != nil {
			t.Fatal(err)
		}
		return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | flags}, Data: append([]byte{byte(family), 0, 0, 0}, raw...)}
	}
	edge := func(kind int) netlink.Message {
		m := message(kind, 0, 0)
		m.Data[3] = unix.NFNL_SUBSYS_NFTABLES
		return m
	}
	const nft = unix.NFNL_SUBSYS_NFTABLES << 8
	batch := []netlink.Message{edge(unix.NFNL_MSG_BATCH_BEGIN)}
	for name := range tables {
		kind, name, _ := strings.Cut(name, " ")
		family := map[string]int{"ip": unix.NFPROTO_IPV4, "ip6": unix.NFPROTO_IPV6, "bridge": unix.NFPROTO_BRIDGE}[kind]
		of := netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(name), 0)}
		batch = append(batch, message(nft|unix.NFT_MSG_NEWTABLE, family, netlink.Create, of), message(nft|unix.NFT_MSG_DELTABLE, family, 0, of),
			message(nft|unix.NFT_MSG_NEWTABLE, family, netlink.Create|netlink.Acknowledge, of, netlink.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: binaryutil.BigEndian.PutUint32(2)}))
	}
	if _, err := c.SendMessages(append(batch, edge(unix.NFNL_MSG_BATCH_END))); err != nil {
		t.Fatal(err)
	}
	for range tables {
		if _, err := c.Receive(); err != nil {
			t.Fatal(err)
		}
	}
	return func() { c.Close() }
}
