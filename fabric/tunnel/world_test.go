package tunnel

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"rivulet/fabric/logbound"
	"rivulet/fabric/nft"
	"rivulet/fabric/reach"
	"rivulet/fabric/wgkey"
	"rivulet/test/harness/testns"
)

// The world of these tests: two nodes on one cable, a pod on each, the same
// 10.42.0.0/16 on both, and on both the masquerading of flannel.
//
//	pod 10.42.0.5 ── cni0 [node a] 192.168.77.1 ──── 192.168.77.2 [node b] cni0 ── pod 10.42.0.7
//	                     riv0: b is 10.200.0.0/16    riv0: a is 10.201.0.0/16
var (
	podCIDR    = netip.MustParsePrefix("10.42.0.0/16")
	ownAddress = netip.MustParseAddr("10.42.255.254")
	bSeenByA   = netip.MustParsePrefix("10.200.0.0/16")
	aSeenByB   = netip.MustParsePrefix("10.201.0.0/16")
)

const (
	wgPort      = 7442
	controlPort = 7442
	testMTU     = 1420
)

// room is a network namespace in which these tests listen and dial.
type room struct {
	testns.Room
	t  testing.TB
	ns netns.NsHandle
}

func newRoom(t testing.TB) *room {
	t.Helper()
	r := testns.New(t)
	return &room{Room: r, t: t, ns: r.NS}
}

func (r *room) in(what func() error) error { return r.Try(what) }

func (r *room) must(what func() error) {
	r.t.Helper()
	r.Do(what)
}

func (r *room) listen(addr string) net.Listener {
	r.t.Helper()
	var l net.Listener
	r.must(func() (err error) { l, err = net.Listen("tcp4", addr); return err })
	r.t.Cleanup(func() { l.Close() })
	return l
}

func (r *room) packets(addr string) net.PacketConn {
	r.t.Helper()
	var c net.PacketConn
	r.must(func() (err error) { c, err = net.ListenPacket("udp4", addr); return err })
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *room) dial(network, addr string, limit time.Duration) (c net.Conn, err error) {
	err = r.in(func() (err error) { c, err = net.DialTimeout(network, addr, limit); return err })
	return c, err
}

func (r *room) sysctl(file, value string) {
	r.t.Helper()
	r.must(func() error { return os.WriteFile("/proc/sys/net/ipv4/"+file, []byte(value), 0) })
}

// cable joins two rooms.
func cable(a *room, nameA, addrA string, b *room, nameB, addrB string) {
	a.t.Helper()
	a.Cable(nameA, b.Room, nameB)
	a.must(func() error { return testns.Give(nameA, addrA) })
	b.must(func() error { return testns.Give(nameB, addrB) })
}

func take(name, cidr string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	return netlink.AddrDel(link, addr)
}

// board is one cluster of one node.
type board struct {
	node, pod *room
	config    ControllerConfig
	*Controller
	want Config
}

type world struct{ a, b *board }

// newWorld makes both devices and starts their tunnels, not yet configured.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{a: newDevice(t, "10.42.0.5/24"), b: newDevice(t, "10.42.0.7/24")}
	cable(w.a.node, "eth0", "192.168.77.1/24", w.b.node, "eth0", "192.168.77.2/24")
	keyA, pubA := newKeys(t)
	keyB, pubB := newKeys(t)
	w.a.want = config(keyA, Peer{ID: "b", PublicKey: pubB, Endpoint: netip.MustParseAddrPort("192.168.77.2:7442"), LocalMappedCIDR: aSeenByB, PeerMappedCIDR: bSeenByA})
	w.b.want = config(keyB, Peer{ID: "a", PublicKey: pubA, Endpoint: netip.MustParseAddrPort("192.168.77.1:7442"), LocalMappedCIDR: bSeenByA, PeerMappedCIDR: aSeenByB})
	return w
}

func config(key wgkey.Private, peers ...Peer) Config {
	return Config{PrivateKey: key, Port: wgPort, Interface: "riv0", MTU: testMTU, Address: ownAddress,
		ControlPort: controlPort, PodCIDR: podCIDR, Peers: peers}
}

func newKeys(t testing.TB) (wgkey.Private, wgkey.Public) {
	t.Helper()
	k, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return k, k.Public()
}

func newDevice(t testing.TB, podAddr string) *board { return newBoard(t, "10.42.0.1/24", podAddr) }

func newBoard(t testing.TB, bridgeAddr, podAddr string) *board {
	t.Helper()
	d := &board{node: newRoom(t), pod: newRoom(t)}
	cable(d.node, "cni0", bridgeAddr, d.pod, "eth0", podAddr)
	d.pod.must(func() error {
		return netlink.RouteAdd(&netlink.Route{Gw: netip.MustParsePrefix(bridgeAddr).Addr().AsSlice()})
	})
	d.node.sysctl("ip_forward", "1")
	masqueradeLikeFlannel(t, d.node)

	// What a peer reaches is package reach's to decide; here it is everything.
	open := nft.NewGuard(int(d.node.ns), slog.New(slog.DiscardHandler)).Tables(reach.Table, reach.Family)
	all := reach.Rules{Interface: "riv0", Own: ownAddress, Whole: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
	if _, err := open.Apply([]nft.Program{reach.Program(all)}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d.config = ControllerConfig{
		Helper: testns.Program(t, d.node.ns, roleVar+"=serve"), Socket: filepath.Join(dir, "tunnel.sock"), PIDFile: filepath.Join(dir, "tunnel.pid"),
		LogFile: filepath.Join(dir, "tunnel.log"), Version: HelperVersion, Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
	d.Controller = NewController(d.config)
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := d.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		if t.Failed() {
			log, _ := os.ReadFile(d.config.LogFile)
			t.Logf("tunnel of pod %s:\n%s", podAddr, log)
		}
	})
	return d
}

// masqueradeLikeFlannel does what flannel does to pod traffic: all that leaves the
// pod CIDR, and all that comes into it from elsewhere, gets the node's address.
func masqueradeLikeFlannel(t testing.TB, node *room) {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(node.ns)))
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Name: "flannel", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	masquerade := []expr.Any{&expr.Masq{}}
	nft.Rule(c, chain, source(podCIDR), nft.Not(destination(podCIDR)), masquerade)
	nft.Rule(c, chain, nft.Not(source(podCIDR)), destination(podCIDR), masquerade)
	if err := c.Flush(); err != nil {
		t.Skipf("needs nf_tables with nat in the kernel: %v", err)
	}
}

func (w *world) apply(t testing.TB) {
	t.Helper()
	for _, d := range []*board{w.a, w.b} {
		if err := d.Apply(t.Context(), d.want); err != nil {
			t.Fatal(err)
		}
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	fmt.Fprintf(os.Stderr, "%s: %s", w.t.Name(), p)
	return len(p), nil
}

const roleVar = "TUNNEL_TEST_ROLE"

func TestMain(m *testing.M) {
	testns.Enter()
	if os.Getenv(roleVar) == "serve" {
		out, err := OpenLog(os.Args[4])
		if err != nil {
			panic(err)
		}
		log := slog.New(logbound.Handler(slog.NewTextHandler(out, nil)))
		s := NewServer(HelperVersion, log)
		go s.Follow(context.Background())
		ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer cancel()
		if err := s.Serve(ctx, os.Args[2]); err != nil {
			log.Error("serve", "error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}
