package weights

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"rivulet/fabric/nft"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// The ranges of all endpoints together are all numbers, each once, and each part has its share of them, evenly divided,
// but for less than one number of an endpoint.
func TestFirsts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var parts []Part
		all := uint64(0)
		for i := range rapid.IntRange(1, 5).Draw(t, "parts") {
			p := Part{Weight: rapid.Uint64Range(0, 1_000_000).Draw(t, "weight")}
			for j := range rapid.IntRange(0, 50).Draw(t, "endpoints") {
				p.Endpoints = append(p.Endpoints, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, byte(j)}), 80))
			}
			if parts = append(parts, p); len(p.Endpoints) > 0 {
				all += p.Weight
			}
		}
		endpoints, first := firsts(parts)
		if all == 0 {
			if len(endpoints) > 0 {
				t.Fatalf("%v get something of nothing", endpoints)
			}
			return
		}
		if first[0] != 0 || !slices.IsSorted(first) || first[len(first)-1] > dividend {
			t.Fatal(first)
		}
		first = append(first, dividend)
		for _, p := range parts {
			for _, e := range p.Endpoints {
				got := 0.0
				if i := slices.Index(endpoints, e); i >= 0 {
					got = float64(first[i+1]) - float64(first[i])
				}
				if want := float64(p.Weight) / float64(all) / float64(len(p.Endpoints)) * dividend; math.Abs(got-want) > 1.001 {
					t.Fatalf("%s has %v of %d numbers, want %v", e, got, dividend, want)
				}
			}
		}
	})
}

// counted is a program that answers at an address, and counts connections by their senders.
type counted struct {
	mu   sync.Mutex
	from map[string]int
}

func (c *counted) add(from net.Addr) {
	host, _, _ := net.SplitHostPort(from.String())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from[host]++
}

// take are the connections since the last call.
func (c *counted) take() (n int, from map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from, c.from = c.from, map[string]int{}
	for _, m := range from {
		n += m
	}
	return n, from
}

// answer answers by TCP and UDP.
func answer(t *testing.T, r testns.Room, addr string) *counted {
	c := &counted{from: map[string]int{}}
	r.Do(func() error {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		u, err := net.ListenPacket("udp", addr)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close(); u.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				c.add(conn.RemoteAddr())
				conn.Close()
			}
		}()
		go func() {
			b := make([]byte, 8)
			for {
				n, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				c.add(from)
				_, _ = u.WriteTo(b[:n], from)
			}
		}()
		return nil
	})
	return c
}

// world is a device with two pods of a Service and a client, and a peer with a third one behind a cable that stands for
// the tunnel.
type world struct {
	host, client, one testns.Room
	pods              [3]*counted // two here, one at the peer
	weights           *Weights
	mu                sync.Mutex
	err               error
}

var (
	pods       = netip.MustParsePrefix("10.42.0.0/16")
	clusterIPs = netip.MustParsePrefix("10.43.0.0/16")
	web        = netip.MustParseAddrPort("10.43.0.7:80")
	endpoints  = []netip.AddrPort{netip.MustParseAddrPort("10.42.0.5:8080"), netip.MustParseAddrPort("10.42.0.6:8080"), netip.MustParseAddrPort("10.70.0.5:8080")}
)

// split is the Service with these weights of the device and the peer.
func split(home, peer uint64) Service {
	return Service{Addr: web, Protocol: corev1.ProtocolTCP, Parts: []Part{{Weight: home, Endpoints: endpoints[:2]}, {Weight: peer, Endpoints: endpoints[2:]}}}
}

func newWorld(t *testing.T) *world {
	w := &world{host: testns.New(t), client: testns.New(t), one: testns.New(t)}
	two, peer := testns.New(t), testns.New(t)
	w.host.Router()
	w.host.Bridge("cni0", "10.42.0.1/24")
	w.host.Plug("cni0", "veth0", w.client, "10.42.0.4/24", "10.42.0.1")
	w.host.Plug("cni0", "veth1", w.one, "10.42.0.5/24", "10.42.0.1")
	w.host.Plug("cni0", "veth2", two, "10.42.0.6/24", "10.42.0.1")
	w.host.Cable("riv0", peer, "eth0")
	w.host.Do(func() error {
		for _, a := range []string{"10.70.255.1/16", "192.0.2.1/32"} {
			if err := testns.Give("riv0", a); err != nil {
				return err
			}
		}
		_, services, _ := net.ParseCIDR("10.43.0.0/16")
		_, clients, _ := net.ParseCIDR("10.42.64.0/18")
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return errors.Join( // as a device's route to Services; and more addresses of the client
			netlink.RouteAdd(&netlink.Route{Dst: services, LinkIndex: lo.Attrs().Index, Src: net.ParseIP("192.0.2.1")}),
			netlink.RouteAdd(&netlink.Route{Dst: clients, Gw: net.ParseIP("10.42.0.4")}))
	})
	w.client.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		_, clients, _ := net.ParseCIDR("10.42.64.0/18")
		return netlink.RouteAdd(&netlink.Route{Dst: clients, LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST})
	})
	peer.Do(func() error {
		return errors.Join(testns.Give("eth0", "10.70.0.5/16"), testns.Route("10.42.0.0/16", "10.70.255.1"))
	})
	for i, r := range []testns.Room{w.one, two, peer} {
		w.pods[i] = answer(t, r, "0.0.0.0:8080")
	}
	guard := nft.NewGuard(int(w.host.NS), slog.New(slog.NewTextHandler(t.Output(), nil)))
	w.weights = New(Config{Pods: pods, Services: clusterIPs, Guard: guard, Report: func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.err = err
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	for _, run := range []func(context.Context) error{w.weights.Run, func(ctx context.Context) error { return guard.Run(ctx, func() {}) }} {
		all.Go(func() {
			if err := run(ctx); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	return w
}

// use puts the Service in force.
func (w *world) use(t *testing.T, s Service) {
	t.Helper()
	w.weights.Set([]Service{s})
	want := program(pods, clusterIPs, []Service{s})
	await.NoError(t, t.Context(), time.Minute, "the table", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		c, err := nft.Open(int(w.host.NS))
		if err != nil || w.err != nil {
			return errors.Join(err, w.err)
		}
		tables, err := c.ListTables()
		if err != nil || len(tables) != 1 {
			return fmt.Errorf("%d tables, %v", len(tables), err)
		}
		sets, err := c.GetSets(tables[0])
		if err == nil && len(sets) != len(want.Sets) {
			err = fmt.Errorf("%d sets", len(sets))
		}
		for _, set := range sets {
			if _, ok := want.Sets[set.Name]; !ok {
				err = fmt.Errorf("set %s", set.Name)
			}
		}
		return err
	})
}

// dial connects n times, from these addresses of the room in turn, and returns how many each endpoint has got.
func (w *world) dial(t *testing.T, from testns.Room, network string, n int, addrs ...string) (got [3]int, senders [3]map[string]int) {
	t.Helper()
	for _, p := range w.pods {
		p.take()
	}
	from.Do(func() error {
		for i := range n {
			d := net.Dialer{Timeout: 2 * time.Second}
			if len(addrs) > 0 {
				d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(addrs[i%len(addrs)])}
			}
			c, err := d.Dial(network, web.String())
			if err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			_ = c.SetDeadline(time.Now().Add(2 * time.Second))
			b := make([]byte, 1)
			if network == "udp" {
				if _, err = c.Write(b); err == nil {
					_, err = c.Read(b)
				}
			} else {
				_, _ = c.Read(b) // until the other side ends, so that this one holds no port
			}
			if c.Close(); err != nil {
				return fmt.Errorf("datagram %d: %w", i, err)
			}
		}
		return nil
	})
	for i, p := range w.pods {
		got[i], senders[i] = p.take()
	}
	return got, senders
}

// within fails unless all counts are within five standard deviations of their shares: one in a million tests fails by chance.
func within(t *testing.T, what string, got [3]int, shares [3]float64) {
	t.Helper()
	n := got[0] + got[1] + got[2]
	for i, share := range shares {
		if mean := share * float64(n); math.Abs(float64(got[i])-mean) > 5*math.Sqrt(mean*(1-share)) {
			t.Errorf("%s: %v of %d connections, want the shares %v", what, got, n, shares)
			return
		}
	}
	t.Logf("%s: %v of %d connections", what, got, n)
}

// Ten thousand connections go where the weights say, by TCP and UDP, from pods, from the device and from the endpoints
// themselves; changed weights count for the next connection.
func TestTenThousandConnections(t *testing.T) {
	w := newWorld(t)
	w.use(t, split(90, 10))
	const n = 10_000
	got, senders := w.dial(t, w.client, "tcp", n)
	within(t, "from a pod", got, [3]float64{0.45, 0.45, 0.10})
	if senders[0]["10.42.0.4"]+senders[2]["10.42.0.4"] != got[0]+got[2] {
		t.Errorf("the client's address is not kept: %v", senders)
	}
	got, senders = w.dial(t, w.host, "tcp", n)
	within(t, "from the device", got, [3]float64{0.45, 0.45, 0.10})
	if senders[0]["10.42.0.1"] != got[0] || senders[2]["10.70.255.1"] != got[2] {
		t.Errorf("the device's address leads nowhere at a peer, it is masqueraded: %v", senders)
	}
	got, senders = w.dial(t, w.one, "tcp", n)
	within(t, "from an endpoint", got, [3]float64{0.45, 0.45, 0.10})
	if senders[0]["10.42.0.1"] != got[0] || senders[1]["10.42.0.5"] != got[1] || senders[2]["10.42.0.5"] != got[2] {
		t.Errorf("a pod that reaches itself is masqueraded, and no other: %v", senders)
	}

	w.use(t, split(1, 3))
	got, _ = w.dial(t, w.client, "tcp", n)
	within(t, "after a change", got, [3]float64{0.125, 0.125, 0.75})
	w.use(t, Service{Addr: web, Protocol: corev1.ProtocolTCP, Parts: []Part{{Weight: 90, Endpoints: endpoints[1:2]}, {Weight: 10}}})
	got, _ = w.dial(t, w.client, "tcp", 200)
	within(t, "one endpoint is left", got, [3]float64{0, 1, 0})

	udp := split(50, 50)
	udp.Protocol = corev1.ProtocolUDP
	w.use(t, udp)
	got, _ = w.dial(t, w.client, "udp", n)
	within(t, "datagrams", got, [3]float64{0.25, 0.25, 0.5})

	w.weights.Set(nil)
	await.NoError(t, t.Context(), 10*time.Second, "no table", func() error {
		n, err := nft.Stand(int(w.host.NS), Table, 2)
		if err == nil && n > 0 {
			err = errors.New("it is there")
		}
		return err
	})
}

// With session affinity a sender always reaches the same endpoint, and senders are distributed by weight.
func TestAffinity(t *testing.T) {
	w := newWorld(t)
	s := split(75, 25)
	s.Sticky = true
	w.use(t, s)
	var addrs []string
	for i := range 2000 {
		addrs = append(addrs, fmt.Sprintf("10.42.%d.%d", 64+i/250, 1+i%250))
	}
	got, senders := w.dial(t, w.client, "tcp", 2*len(addrs), addrs...)
	for from, n := range senders[0] {
		if n != 2 || senders[1][from]+senders[2][from] > 0 {
			t.Errorf("%s reaches several endpoints", from)
		}
	}
	for i := range got { // senders, of which each has connected twice
		got[i] /= 2
	}
	within(t, "senders", got, [3]float64{0.375, 0.375, 0.25})
}

// The kernel takes as many endpoints as a cluster set may have, of all protocols.
func TestLarge(t *testing.T) {
	w := newWorld(t)
	s := Service{Addr: web, Protocol: corev1.ProtocolSCTP}
	for i := range 8 {
		p := Part{Weight: uint64(i + 1)}
		for j := range 4096 {
			p.Endpoints = append(p.Endpoints, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(70 + i), byte(j >> 8), byte(j)}), 80))
		}
		s.Parts = append(s.Parts, p)
	}
	w.use(t, s)
}
