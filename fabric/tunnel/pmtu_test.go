package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"pgregory.net/rapid"

	"rivulet/fabric/changes"
	"rivulet/test/harness/await"
)

// line is a fake path: what is at most so large arrives, and of that all but some.
type line struct {
	fits  atomic.Int64
	loses func() bool
	path  *pathMTU
	asked atomic.Int64
	large atomic.Uint64
	way   atomic.Value

	mu  sync.Mutex
	mtu []int
}

// told are the MTUs that were put into use so far.
func (l *line) told() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.mtu)
}

func newLine(fits int) *line {
	l := &line{loses: func() bool { return false }}
	l.fits.Store(int64(fits))
	l.way.Store("direct")
	l.path = &pathMTU{
		most: testMTU, answers: make(chan int, 64), doubt: make(chan struct{}, 1), large: l.large.Load,
		begin: func() {
			for len(l.path.answers) > 0 {
				<-l.path.answers
			}
		},
		way: func() string { return l.way.Load().(string) },
		probe: func(size int) {
			l.asked.Add(1)
			if int64(size) <= l.fits.Load() && !l.loses() {
				l.path.answers <- size
			}
		},
		use: func(mtu int) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.mtu = append(l.mtu, mtu)
		},
	}
	return l
}

func (l *line) last() int {
	told := l.told()
	if len(told) == 0 {
		return 0
	}
	return told[len(told)-1]
}

// The MTU of a path is found at once, a path that has grown narrower is noticed
// while there is traffic, and one that has grown wider within ten minutes, or at
// once where the host has moved.
func TestPathIsFoundAndFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := newLine(1500)
		go l.path.run(ctx)
		want := func(mtu int, within time.Duration, when string) {
			t.Helper()
			time.Sleep(within)
			synctest.Wait()
			if l.last() != mtu {
				t.Fatalf("%s: the MTU is %v, want %d", when, l.told(), mtu)
			}
		}
		want(testMTU, time.Millisecond, "at first")
		asked := l.asked.Load()
		time.Sleep(time.Hour)
		synctest.Wait()
		if now := l.asked.Load(); now != asked {
			t.Errorf("%d packets were sent in an hour without traffic", now-asked)
		}
		l.fits.Store(1220)
		l.large.Add(1)
		want(1216, probeConfirm+2*probeRounds*probeWait, "path narrower, with traffic")
		l.fits.Store(1400)
		want(1392, probeRaise+probeConfirm+probeRounds*probeWait, "path wider")
		l.fits.Store(1500)
		changes.Poke(l.path.doubt)
		want(testMTU, time.Second, "host has moved")
		l.fits.Store(1300)
		l.way.Store("relayed")
		want(1296, probeConfirm+2*probeRounds*probeWait, "another way")
	})
}

// A peer that does not answer costs little, and what is in force stays.
func TestSilenceIsNoNarrowPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := newLine(0)
		go l.path.run(ctx)
		time.Sleep(time.Hour)
		synctest.Wait()
		if told, asked := l.told(), l.asked.Load(); len(told) != 0 || asked > 500 {
			t.Errorf("told %v after %d packets an hour", told, asked)
		}
		l.fits.Store(1500)
		time.Sleep(probeRetries + time.Second)
		synctest.Wait()
		if l.last() != testMTU {
			t.Errorf("it answers, and the MTU is %v", l.told())
		}
		l.fits.Store(0)
		for range 100 {
			l.large.Add(1)
			time.Sleep(probeConfirm)
		}
		synctest.Wait()
		if l.last() != testMTU {
			t.Errorf("it is gone, and the MTU is %v", l.told())
		}
	})
}

// Loss that has nothing to do with size does not make a path narrow, up to half
// of all packets and but for bad luck in every round.
func TestLossIsNoNarrowPath(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		fits := rapid.IntRange(576, 9000).Draw(r, "fits")
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 1))
		want, got := 0, 0
		for _, s := range probeSizes(testMTU) {
			if s <= fits {
				want = s
			}
		}
		synctest.Test(t, func(*testing.T) {
			l := newLine(fits)
			size, lost := 0, map[int]int{}
			ask := l.path.probe
			l.path.probe = func(s int) { size = s; ask(s) }
			l.loses = func() bool { // never in every round
				if rnd.IntN(2) == 0 && lost[size] < probeRounds-1 {
					lost[size]++
					return true
				}
				return false
			}
			l.path.sweep(context.Background())
			got = l.last()
		})
		if got != want {
			r.Fatalf("fits %d: measured %d, want %d", fits, got, want)
		}
	})
}

func TestProbesAreRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := probe{kind: rapid.SampledFrom([]byte{probeAsk, probeAnswer}).Draw(t, "kind"), number: rapid.Uint64().Draw(t, "number"), size: rapid.IntRange(smallProbe, 9000).Draw(t, "size")}
		b := p.bytes()
		if got, ok := parseProbe(b); !ok || got != p {
			t.Fatalf("%v was read as %v, %v", p, got, ok)
		}
		if p.kind == probeAsk && len(b)+ipAndUDP != p.size {
			t.Fatalf("an ask for %d bytes has %d", p.size, len(b)+ipAndUDP)
		}
		if _, ok := parseProbe(append(b, 0)); ok {
			t.Fatal("one byte more was accepted")
		}
	})
}

func FuzzProbe(f *testing.F) {
	f.Add(probe{probeAsk, 7, 1420}.bytes())
	f.Add(probe{probeAnswer, 7, 1420}.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := parseProbe(b)
		if !ok {
			return
		}
		if again, ok := parseProbe(p.bytes()); !ok || again != p || p.kind == probeAnswer && !bytes.Equal(b[:7], p.bytes()[:7]) {
			t.Fatalf("%x was read as %v, then as %v", b, p, again)
		}
	})
}

// narrow is the way between the two nodes through two routers, whose link is
// narrower than those at its ends. The nodes cannot see it.
//
//	node a ──1500── router ──mtu── router ──1500── node b
type narrow struct {
	*world
	routers [2]*room
}

func newNarrow(t *testing.T, mtu int, v6 bool) *narrow {
	t.Helper()
	w := &world{a: newDevice(t, "10.42.0.5/24"), b: newDevice(t, "10.42.0.7/24")}
	n := &narrow{world: w, routers: [2]*room{newRoom(t), newRoom(t)}}
	net := func(i int) (near, router string) {
		if v6 {
			return fmt.Sprintf("fd00:%d::2/64", i), fmt.Sprintf("fd00:%d::1/64", i)
		}
		return fmt.Sprintf("192.168.%d.2/24", i), fmt.Sprintf("192.168.%d.1/24", i)
	}
	for i, d := range []*board{w.a, w.b} {
		near, router := net(i + 1)
		cableQuick(d.node, "eth0", near, n.routers[i], "eth0", router)
		d.node.must(func() error { return defaultVia(router) })
	}
	near, far := net(9)
	cableQuick(n.routers[0], "mid", near, n.routers[1], "mid", far)
	n.routers[0].must(func() error { return defaultVia(far) })
	n.routers[1].must(func() error { return defaultVia(near) })
	for _, r := range n.routers {
		r.must(func() error {
			if v6 {
				return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0)
			}
			return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
		})
	}
	n.set(t, mtu)
	keyA, pubA := newKeys(t)
	keyB, pubB := newKeys(t)
	at := func(i int) netip.AddrPort {
		a, _ := net(i)
		return netip.AddrPortFrom(netip.MustParsePrefix(a).Addr(), wgPort)
	}
	w.a.want = config(keyA, Peer{ID: "b", PublicKey: pubB, Endpoint: at(2), LocalMappedCIDR: aSeenByB, PeerMappedCIDR: bSeenByA, Address: netip.MustParseAddr("10.200.255.254")})
	w.b.want = config(keyB, Peer{ID: "a", PublicKey: pubA, Endpoint: at(1), LocalMappedCIDR: bSeenByA, PeerMappedCIDR: aSeenByB, Address: netip.MustParseAddr("10.201.255.254")})
	w.apply(t)
	return n
}

// cableQuick is cable for addresses that are used at once: IPv6 would look for
// their double first.
func cableQuick(a *room, nameA, addrA string, b *room, nameB, addrB string) {
	for _, r := range []*room{a, b} {
		r.must(func() error {
			_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
			return nil
		})
	}
	cable(a, nameA, addrA, b, nameB, addrB)
}

func defaultVia(router string) error {
	gw := netip.MustParsePrefix(router).Addr()
	all := "0.0.0.0/0"
	if gw.Is6() {
		all = "::/0"
	}
	_, dst, _ := net.ParseCIDR(all)
	return netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: gw.AsSlice()})
}

// set makes the link in the middle so wide.
func (n *narrow) set(t *testing.T, mtu int) {
	t.Helper()
	for _, r := range n.routers {
		r.must(func() error {
			link, err := netlink.LinkByName("mid")
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(link, mtu)
		})
	}
}

// noFragments makes the way one on which fragments are lost, as many are.
func (n *narrow) noFragments(t *testing.T) {
	t.Helper()
	for _, r := range n.routers {
		c, err := nftables.New(nftables.WithNetNSFd(int(r.ns)))
		if err != nil {
			t.Fatal(err)
		}
		table := c.AddTable(&nftables.Table{Name: "strict", Family: nftables.TableFamilyIPv4})
		chain := c.AddChain(&nftables.Chain{Name: "in", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-450)})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 6, Len: 2},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0x3f, 0xff}, Xor: []byte{0, 0}},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0, 0}},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

const followLimit = 60 * time.Second

// measured waits until both ends have so much room for a packet.
func (n *narrow) measured(t *testing.T, mtu int) {
	t.Helper()
	var got [2]int
	await.True(t, followLimit, fmt.Sprintf("an MTU of %d at both ends, not %v", mtu, &got), func() bool {
		for i, d := range []*board{n.a, n.b} {
			if st, err := d.Status(t.Context()); err == nil && len(st.Peers) == 1 {
				got[i] = st.Peers[0].MTU
			}
		}
		return got == [2]int{mtu, mtu}
	})
}

// cuts says how many fragments each router has made.
func (n *narrow) cuts(t *testing.T) string {
	t.Helper()
	var made []string
	for _, r := range n.routers {
		r.must(func() error {
			raw, err := os.ReadFile("/proc/thread-self/net/snmp")
			lines := strings.SplitN(string(raw), "\n", 3)
			if err != nil || len(lines) < 3 {
				return errors.Join(err, errors.New("the kernel counts nothing"))
			}
			values := strings.Fields(lines[1])
			for i, name := range strings.Fields(lines[0]) {
				if name == "FragCreates" && i < len(values) {
					made = append(made, values[i])
				}
			}
			return nil
		})
	}
	if len(made) != len(n.routers) {
		t.Fatal("the kernel does not count fragments")
	}
	return strings.Join(made, " ")
}

// talk keeps a TCP connection between the pods busy in both directions until the
// test ends, and returns how many bytes have come back so far.
func (n *narrow) talk(t *testing.T) func() int64 {
	t.Helper()
	l := n.b.pod.listen(":8080")
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	var c net.Conn
	var err error
	// A first handshake that was lost is tried again after 5 s.
	await.True(t, followLimit, "a connection", func() bool {
		c, err = n.a.pod.dial("tcp4", "10.200.0.7:8080", followLimit)
		return err == nil
	})
	t.Cleanup(func() { c.Close() })
	var back atomic.Int64
	go func() {
		piece := make([]byte, 64<<10)
		for {
			if _, err := c.Write(piece); err != nil {
				return
			}
			got, err := io.ReadFull(c, piece)
			back.Add(int64(got))
			if err != nil {
				return
			}
			time.Sleep(2 * time.Millisecond) // leaves the other tests something of the machine
		}
	}()
	return back.Load
}

func goesOn(t *testing.T, back func() int64, when string) {
	t.Helper()
	was := back()
	await.True(t, followLimit, when+": 1 MB more over the same connection", func() bool { return back() > was+1<<20 })
}

// The path to a peer is measured; when it grows narrower under a connection, the
// connection goes on, and soon nothing is cut on the outside any more.
func TestPathGrowsNarrower(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, fragments := range []bool{true, false} {
		t.Run(fmt.Sprintf("fragments pass %v", fragments), func(t *testing.T) {
			t.Parallel()
			n := newNarrow(t, 1500, false)
			if !fragments {
				n.noFragments(t)
			}
			n.measured(t, testMTU)
			back := n.talk(t)
			goesOn(t, back, "path of 1500")
			path, mtu := 1400, 1328
			if fragments {
				path, mtu = 1280, 1216
			}
			n.set(t, path)
			if fragments {
				goesOn(t, back, "at once, in fragments")
			}
			n.measured(t, mtu)
			goesOn(t, back, "measured anew")
			await.True(t, followLimit, "no more fragments on the outside", func() bool {
				before := n.cuts(t)
				goesOn(t, back, "measured")
				return n.cuts(t) == before
			})
			datagrams(t, n.world, 64, 1300, 8000)
			ping(t, n.a.pod, "10.200.0.7", 4000)
		})
	}
}

// The outside may be IPv6, where no router cuts anything.
func TestIPv6Outside(t *testing.T) {
	t.Parallel()
	n := newNarrow(t, 1500, true)
	n.measured(t, testMTU)
	back := n.talk(t)
	goesOn(t, back, "path of 1500")
	n.set(t, 1280)
	n.measured(t, 1200)
	goesOn(t, back, "path of 1280")
}
