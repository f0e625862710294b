package tunnel

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/fabric/nft"
	"rivulet/fabric/tunnel/paths"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// The world of these tests: c is reachable, a and b are each behind a router of
// their own that translates addresses.
//
//	[a] 10.1.0.2 ── 10.1.0.1 [NAT] 198.51.1.2 ──┐
//	[b] 10.2.0.2 ── 10.2.0.1 [NAT] 198.51.2.2 ──┤ inet
//	[c] 198.51.3.2 ─────────────────────────────┘
type natWorld struct {
	t          *testing.T
	inet       *room
	a, b, c    *board
	natA, natB *room
}

var cSeen = netip.MustParsePrefix("10.202.0.0/16")

// newNATWorld makes it. symmetric NATs choose another port for each destination.
func newNATWorld(t *testing.T, symmetric bool) *natWorld {
	t.Helper()
	w := &natWorld{t: t, inet: newRoom(t), a: newDevice(t, "10.42.0.5/24"), b: newDevice(t, "10.42.0.7/24"), c: newDevice(t, "10.42.0.9/24")}
	w.inet.sysctl("ip_forward", "1")
	w.natA = w.router(w.a, 1, symmetric)
	w.natB = w.router(w.b, 2, symmetric)
	cable(w.inet, "net3", "198.51.3.1/24", w.c.node, "eth0", "198.51.3.2/24")
	gateway(w.c.node, "198.51.3.1")

	keyA, pubA := newKeys(t)
	keyB, pubB := newKeys(t)
	keyC, pubC := newKeys(t)
	atC := netip.MustParseAddrPort("198.51.3.2:7442")
	peerA := Peer{ID: "a", PublicKey: pubA, PeerMappedCIDR: aSeenByB}
	peerB := Peer{ID: "b", PublicKey: pubB, PeerMappedCIDR: bSeenByA}
	peerC := Peer{ID: "c", PublicKey: pubC, PeerMappedCIDR: cSeen, Endpoint: atC}
	with := func(as netip.Prefix, peers ...Peer) (out []Peer) {
		for _, p := range peers {
			p.LocalMappedCIDR = as
			out = append(out, p)
		}
		return out
	}
	w.a.want = config(keyA, with(aSeenByB, peerB, peerC)...)
	w.b.want = config(keyB, with(bSeenByA, peerA, peerC)...)
	w.c.want = config(keyC, with(cSeen, peerA, peerB)...)
	w.a.want.Candidates = []netip.AddrPort{netip.MustParseAddrPort("10.1.0.2:7442")}
	w.b.want.Candidates = []netip.AddrPort{netip.MustParseAddrPort("10.2.0.2:7442")}
	w.c.want.Candidates = []netip.AddrPort{atC}
	w.c.want.Relay = true
	return w
}

// router puts the device behind a NAT with the public address 198.51.N.2.
func (w *natWorld) router(d *board, n int, symmetric bool) *room {
	r := newRoom(w.t)
	r.sysctl("ip_forward", "1")
	cable(r, "lan", fmt.Sprintf("10.%d.0.1/24", n), d.node, "eth0", fmt.Sprintf("10.%d.0.2/24", n))
	cable(w.inet, fmt.Sprintf("net%d", n), fmt.Sprintf("198.51.%d.1/24", n), r, "wan", fmt.Sprintf("198.51.%d.2/24", n))
	gateway(r, fmt.Sprintf("198.51.%d.1", n))
	gateway(d.node, fmt.Sprintf("10.%d.0.1", n))
	c, err := nftables.New(nftables.WithNetNSFd(int(r.ns)))
	if err != nil {
		w.t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Name: "nat", Family: nftables.TableFamilyIPv4})
	post := c.AddChain(&nftables.Chain{Name: "post", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	nft.Rule(c, post, nft.ToInterface("wan"), []expr.Any{&expr.Masq{FullyRandom: symmetric}})
	// As home routers do: what nobody asked for gets no answer, or the two knocks would
	// each find the port taken by the other's refusal.
	in := c.AddChain(&nftables.Chain{Name: "in", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
	nft.Rule(c, in, nft.FromInterface("wan"), nft.Drop)
	if err := c.Flush(); err != nil {
		w.t.Skipf("needs nf_tables with nat in the kernel: %v", err)
	}
	return r
}

func gateway(r *room, via string) {
	r.t.Helper()
	r.must(func() error { return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(via)}) })
}

// noUDP drops UDP between the networks 198.51.N.0/24 and the rest (no other: all) in
// the middle of the net; none given lets all pass again.
func (w *natWorld) noUDP(pairs ...[2]string) {
	w.t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(w.inet.ns)))
	if err != nil {
		w.t.Fatal(err)
	}
	table := &nftables.Table{Name: "cut", Family: nftables.TableFamilyIPv4}
	nft.Remove(c, table)
	c.AddTable(table)
	chain := c.AddChain(&nftables.Chain{Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	for _, p := range pairs {
		nft.Rule(c, chain, nft.FromInterface(p[0]), nft.ToInterface(p[1]), nft.Protocol(unix.IPPROTO_UDP), nft.Drop)
	}
	if err := c.Flush(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *natWorld) apply(boards ...*board) {
	w.t.Helper()
	for _, d := range boards {
		if err := d.Apply(w.t.Context(), d.want); err != nil {
			w.t.Fatal(err)
		}
	}
}

// way is the path in use from d to the peer.
func way(t *testing.T, d *board, id string) paths.PathStatus {
	t.Helper()
	st, err := d.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range st.Peers {
		if p.ID == id && len(p.Paths) > 0 && p.Paths[0].Used {
			return p.Paths[0]
		}
	}
	return paths.PathStatus{}
}

func awaitWay(t *testing.T, d *board, id string, kind paths.Kind) paths.PathStatus {
	t.Helper()
	var last paths.PathStatus
	await.NoError(t, t.Context(), 30*time.Second, fmt.Sprintf("the path to %s is %s", id, kind), func() error {
		if last = way(t, d, id); last.Kind == kind {
			return nil
		}
		st, err := d.Status(t.Context())
		return fmt.Errorf("%+v, %w", st.Peers, err)
	})
	return last
}

// talk is one TCP connection that goes on.
type talk struct {
	t *testing.T
	c net.Conn
	n byte
}

func newTalk(t *testing.T, from, to *board, dst string) *talk {
	t.Helper()
	l := to.pod.listen(":9000")
	go func() {
		for { // one that was given up is not the last
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	var c net.Conn
	await.True(t, 30*time.Second, "a connection through the tunnel", func() (ok bool) {
		var err error
		c, err = from.pod.dial("tcp4", dst+":9000", 2*time.Second)
		return err == nil
	})
	t.Cleanup(func() { c.Close() })
	return &talk{t: t, c: c}
}

// on wants an answer over the same connection, and says how long it took.
func (k *talk) on(within time.Duration) time.Duration {
	k.t.Helper()
	k.n++
	began := time.Now()
	k.c.SetDeadline(began.Add(within))
	if _, err := k.c.Write([]byte{k.n}); err != nil {
		k.t.Fatalf("the connection broke: %v", err)
	}
	var b [1]byte
	if _, err := io.ReadFull(k.c, b[:]); err != nil || b[0] != k.n {
		k.t.Fatalf("no answer within %s: %v", within, err)
	}
	return time.Since(began)
}

// Both behind NAT: c tells each where the other is seen, and they knock at once.
func TestBothBehindNATFindEachOther(t *testing.T) {
	t.Parallel()
	w := newNATWorld(t, false)
	w.apply(w.c, w.a, w.b)
	k := newTalk(t, w.a, w.b, "10.200.0.7")
	k.on(3 * reachLimit)
	if got := awaitWay(t, w.a, "b", paths.Direct); got.Addr.Addr() != netip.MustParseAddr("198.51.2.2") {
		t.Errorf("%+v, want b's router", got)
	}
	awaitWay(t, w.b, "a", paths.Direct)
	k.on(3 * reachLimit)

	t.Run("the way between them is cut: relayed, and direct again", func(t *testing.T) {
		w.noUDP([2]string{"net1", "net2"}, [2]string{"net2", "net1"})
		took := k.on(20 * time.Second)
		awaitWay(t, w.a, "b", paths.Relay)
		w.noUDP()
		k.on(20 * time.Second)
		awaitWay(t, w.a, "b", paths.Direct)
		k.on(3 * reachLimit)
		t.Logf("the same connection went on after %s", took)
	})

	t.Run("both get another address at once", func(t *testing.T) {
		for _, d := range []struct {
			d *board
			n int
		}{{w.a, 1}, {w.b, 2}} {
			d.d.node.must(func() error {
				if err := take("eth0", fmt.Sprintf("10.%d.0.2/24", d.n)); err != nil {
					return err
				}
				return testns.Give("eth0", fmt.Sprintf("10.%d.0.77/24", d.n))
			})
			gateway(d.d.node, fmt.Sprintf("10.%d.0.1", d.n))
		}
		took := k.on(30 * time.Second)
		t.Logf("back after %s", took)
		if took > 10*time.Second {
			t.Errorf("back after %s, want 10 s at most", took)
		}
	})
}

// Both behind NATs that no knock opens: c carries.
func TestBothBehindSymmetricNATAreRelayed(t *testing.T) {
	t.Parallel()
	w := newNATWorld(t, true)
	w.apply(w.c, w.a, w.b)
	newTalk(t, w.a, w.b, "10.200.0.7").on(3 * reachLimit)
	if got := awaitWay(t, w.a, "b", paths.Relay); got.Via != "c" {
		t.Errorf("%+v, want via c", got)
	}
	stream(t, w.a.pod, w.b.pod, "10.200.0.7", "10.201.0.5", 4<<20)
	if st, err := w.c.Status(t.Context()); err != nil || st.Carried < 1000 {
		t.Errorf("c carried %d packets, %v", st.Carried, err)
	}
	w.c.want.Relay = false
	w.apply(w.c)
	if c, err := w.a.pod.dial("tcp4", "10.200.0.7:8080", time.Second); err == nil {
		c.Close()
		t.Error("carried though it is off")
	}
}

// UDP does not pass at all: a stream on c's port 443. When it passes again, it is used.
func TestStreamWhereUDPDoesNotPass(t *testing.T) {
	t.Parallel()
	w := newNATWorld(t, true)
	w.noUDP([2]string{"net1", "net3"}, [2]string{"net3", "net1"})
	w.c.want.StreamPorts = []uint16{443}
	w.a.want.Paths = []PeerPaths{{ID: "c", TCP: []netip.AddrPort{netip.MustParseAddrPort("198.51.3.2:443")}}}
	w.apply(w.c, w.a, w.b)
	k := newTalk(t, w.a, w.c, "10.202.0.9")
	k.on(3 * reachLimit)
	if got := awaitWay(t, w.a, "c", paths.Stream); got.Addr.Port() != 443 {
		t.Errorf("%+v, want port 443", got)
	}
	stream(t, w.a.pod, w.c.pod, "10.202.0.9", "10.201.0.5", 4<<20)

	// b reaches c by UDP: together they reach each other.
	newTalk(t, w.a, w.b, "10.200.0.7").on(3 * reachLimit)
	awaitWay(t, w.a, "b", paths.Relay)

	w.noUDP()
	awaitWay(t, w.a, "c", paths.Direct)
	k.on(3 * reachLimit)
	w.noUDP([2]string{"net1", "net3"}, [2]string{"net3", "net1"})
	t.Logf("the same connection goes on in a stream after %s", k.on(20*time.Second))
	awaitWay(t, w.a, "c", paths.Stream)
}

// A stream is handed over by the supervisor and goes on without it.
func TestStreamIsHandedOver(t *testing.T) {
	t.Parallel()
	w := newNATWorld(t, true)
	w.noUDP([2]string{"net1", "net3"}, [2]string{"net3", "net1"})
	l := w.c.node.listen(":7442")
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			begun := make([]byte, 4096)
			n, err := conn.Read(begun)
			if err == nil {
				err = w.c.HandOver(conn, begun[:n])
			}
			if err != nil {
				slog.Error("hand over", "error", err)
			}
			conn.Close()
		}
	}()
	w.a.want.Paths = []PeerPaths{{ID: "c", TCP: []netip.AddrPort{netip.MustParseAddrPort("198.51.3.2:7442")}}}
	w.apply(w.c, w.a)
	k := newTalk(t, w.a, w.c, "10.202.0.9")
	l.Close()
	w.c.Detach() // the supervisor goes
	k.on(3 * reachLimit)
	next := NewController(w.c.config)
	if err := next.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	defer next.Detach()
	k.on(3 * reachLimit)
	awaitWay(t, w.a, "c", paths.Stream)
}

// Two on a cable without IPv4: the link-local address with the interface is enough,
// though WireGuard's bind cannot send to it before it has heard from there.
func TestLinkLocalIPv6(t *testing.T) {
	t.Parallel()
	a, b := newDevice(t, "10.42.0.5/24"), newDevice(t, "10.42.0.7/24")
	a.node.must(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(b.node.ns)})
	})
	for d, addr := range map[*board]string{a: "fe80::a/64", b: "fe80::b/64"} {
		d.node.must(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			ip, err := netlink.ParseAddr(addr)
			if err != nil {
				return err
			}
			ip.Flags = unix.IFA_F_NODAD
			// No second link-local address, which the kernel makes of the hardware's.
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/eth0/addr_gen_mode", []byte("1"), 0); err != nil {
				return err
			}
			if err := netlink.AddrAdd(link, ip); err != nil {
				return err
			}
			return netlink.LinkSetUp(link)
		})
	}
	keyA, pubA := newKeys(t)
	keyB, pubB := newKeys(t)
	a.want = config(keyA, Peer{ID: "b", PublicKey: pubB, Endpoint: netip.MustParseAddrPort("[fe80::b%eth0]:7442"), LocalMappedCIDR: aSeenByB, PeerMappedCIDR: bSeenByA})
	b.want = config(keyB, Peer{ID: "a", PublicKey: pubA, LocalMappedCIDR: bSeenByA, PeerMappedCIDR: aSeenByB})
	for _, d := range []*board{a, b} {
		if err := d.Apply(t.Context(), d.want); err != nil {
			t.Fatal(err)
		}
	}
	newTalk(t, a, b, "10.200.0.7").on(3 * reachLimit)
	if got := awaitWay(t, a, "b", paths.Direct); got.Addr != netip.MustParseAddrPort("[fe80::b%eth0]:7442") {
		t.Errorf("%+v", got)
	}
	awaitWay(t, b, "a", paths.Direct)
}
