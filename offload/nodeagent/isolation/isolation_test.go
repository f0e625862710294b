package isolation

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/podnet"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

const alice, bob, carol peer.ID = "alice", "bob", "carol"

// A provider with its bridge, a pod of its own, two of alice's, one of bob's; beyond
// a router the homes of alice and bob, another peer, and the rest of the world.
type stage struct {
	t       *testing.T
	host    testns.Room
	world   testns.Room
	pods    map[string]testns.Room
	addrs   map[string]string
	results string
	ingress []string
	as      map[peer.ID]netip.Prefix // how homes see the pods here

	mu     sync.Mutex
	told   map[peer.ID][]netip.Addr
	leads  map[peer.ID][]netip.Addr // Services
	apis   map[peer.ID]netip.AddrPort
	others map[peer.ID][]netip.Addr // pods on other nodes
	server netip.Addr               // another node
	apart  []netip.Addr             // ingress controllers' pods on other nodes
	lan    map[peer.ID][]Port
	twins  map[string]peer.ID
	err    error
	less   map[peer.ID]error
	passes int
	held   *Held
	// bridged is what the kernel is set to.
	bridged bool
	poke    chan struct{}
}

// newStage makes one of namespaces of its own; tests of stages wait more than they work, and run beside each other.
func newStage(t *testing.T) *stage {
	t.Parallel()
	s := &stage{t: t, host: testns.New(t), world: testns.New(t), pods: map[string]testns.Room{}, addrs: map[string]string{},
		results: t.TempDir(), told: map[peer.ID][]netip.Addr{}, twins: map[string]peer.ID{"lab-alice": alice, "lab-bob": bob}, poke: make(chan struct{}, 1), bridged: true}
	s.supervisor()
	s.host.Router()
	s.host.Bridge("cni0", "10.42.0.1/24")
	s.host.Cable("out", s.world, "in")
	s.host.Do(func() error {
		if err := testns.Give("out", "192.0.2.1/24"); err != nil { // public, and yet the host's LAN
			return err
		}
		return errors.Join(testns.Route("10.70.0.0/16", "192.0.2.2"), testns.Route("10.71.0.0/16", "192.0.2.2"), testns.Route("10.72.0.0/16", "192.0.2.2"), testns.Route("0.0.0.0/0", "192.0.2.2"))
	})
	s.world.Do(func() error {
		for i, cidr := range []string{"192.0.2.2/24", "10.70.0.9/32", "10.71.0.9/32", "10.72.0.9/32", "10.72.0.10/32", "203.0.113.9/32", "172.20.0.9/32"} {
			name := "lo"
			if i == 0 {
				name = "in"
			}
			if err := testns.Give(name, cidr); err != nil {
				return err
			}
		}
		return testns.Route("10.42.0.0/16", "192.0.2.1")
	})
	for i, name := range []string{"own", "a1", "a2", "b1"} {
		s.pod(name, fmt.Sprintf("10.42.0.%d", 10+i))
	}
	s.world.Listen("0.0.0.0:80")
	s.host.Listen("0.0.0.0:80")
	s.host.Listen("[::]:81")
	return s
}

// supervisor is a new one, which has seen nothing yet.
func (s *stage) supervisor() {
	s.held = NewHeld()
	s.held.link = func(veth string) (l netlink.Link, err error) {
		err = s.host.Try(func() error { l, err = netlink.LinkByName(veth); return err })
		return l, err
	}
	s.held.alias = func(l netlink.Link, text string) error {
		return s.host.Try(func() error { return netlink.LinkSetAlias(l, text) })
	}
	s.held.exists = func(veth string) bool { _, err := s.held.link(veth); return err == nil }
}

func (s *stage) pod(name, addr string) {
	t := s.t
	t.Helper()
	r := testns.New(t)
	host := "veth" + name
	mac := s.host.Plug("cni0", host, r, addr+"/24", "10.42.0.1")
	r.Listen("0.0.0.0:80")
	s.pods[name], s.addrs[name] = r, addr
	ns := map[byte]string{'o': "default", 'a': "lab-alice", 'b': "lab-bob", 'c': "lab-carol"}[name[0]]
	s.result(name, fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE",%q]],
		"result":{"cniVersion":"1.0.0","interfaces":[{"name":"cni0","mac":"00:00:00:00:00:01"},{"name":%q},{"name":"eth0","mac":%q,"sandbox":"/x"}],
		"ips":[{"interface":2,"address":"%s/24"}]}}`, name, ns, host, mac, addr))
}

// unplug takes a pod's network away as a container network does.
func (s *stage) unplug(name string) {
	s.host.Do(func() error {
		l, err := netlink.LinkByName("veth" + name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	if err := os.Remove(filepath.Join(s.results, "cbr0-"+name+"-eth0")); err != nil {
		s.t.Fatal(err)
	}
}

// result writes a file as libcni does: whole, in one write.
func (s *stage) result(name, text string) {
	if err := os.WriteFile(filepath.Join(s.results, "cbr0-"+name+"-eth0"), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) run() (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	keeper := nft.NewGuard(int(s.host.NS), slog.New(slog.DiscardHandler))
	go keeper.Run(ctx, func() {})
	cfg := Config{
		Guard: keeper, Results: s.results, Pods: netip.MustParsePrefix("10.42.0.0/16"), DNS: netip.MustParseAddr("10.43.0.10"),
		Twins: func() map[string]peer.ID {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.twins
		},
		Held: s.held,
		Endpoints: func(id peer.ID) iter.Seq[netip.Addr] {
			s.mu.Lock()
			defer s.mu.Unlock()
			return slices.Values(s.told[id])
		},
		Links: func() []peer.Link {
			s.mu.Lock()
			defer s.mu.Unlock()
			links := []peer.Link{{ID: alice, PeerMappedCIDR: netip.MustParsePrefix("10.70.0.0/16")}, {ID: bob, PeerMappedCIDR: netip.MustParsePrefix("10.71.0.0/16")}, {ID: carol, PeerMappedCIDR: netip.MustParsePrefix("10.72.0.0/16")}}
			for i := range links {
				links[i].LocalMappedCIDR = s.as[links[i].ID]
			}
			return links
		},
		Services: func(id peer.ID) iter.Seq[netip.Addr] {
			s.mu.Lock()
			defer s.mu.Unlock()
			return slices.Values(s.leads[id])
		},
		Server: s.server, Others: func(id peer.ID) []netip.Addr {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.others[id]
		},
		API: func(id peer.ID) netip.AddrPort {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.apis[id]
		},
		LAN: func(id peer.ID) []Port {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.lan[id]
		},
		Ingress: func() []string { return s.ingress },
		Controllers: func() []netip.Addr {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.apart
		},
		Networks: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} },
		Changed:  s.poke,
		Report: func(err error, less map[peer.ID]error) {
			s.mu.Lock()
			s.err, s.less, s.passes = err, less, s.passes+1
			s.mu.Unlock()
		},
		Log:     slog.New(slog.DiscardHandler),
		bridged: func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.bridged },
	}
	go func() { done <- Run(ctx, cfg) }()
	end = sync.OnceFunc(func() {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(end)
	s.mu.Lock()
	s.passes = 0
	s.mu.Unlock()
	s.until("the first pass", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.passes > 0 && s.err == nil })
	return end
}

func (s *stage) until(what string, ok func() bool) {
	s.t.Helper()
	await.NoError(s.t, s.t.Context(), 30*time.Second, what, func() error {
		if ok() {
			return nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("it does not hold; last error: %v", s.err)
	})
}

// open waits until one reaches the other: a bridge takes a moment to know its ports.
func (s *stage) open(from, source, to string) {
	s.t.Helper()
	s.until(from+" reaches "+to, func() bool { return s.reaches(from, source, to) })
}

// probe is a connection that somebody tries to make: a pod, "host" or "world", from one of its addresses or from any (""),
// to a pod or an address, at port 80 unless it has another.
type probe struct {
	from, source, to string
	want             bool
}

// none are probes of which none may connect.
func none(from, source string, to ...string) (out []probe) {
	for _, to := range to {
		out = append(out, probe{from, source, to, false})
	}
	return out
}

// check tries all probes at once.
func (s *stage) check(probes ...probe) {
	s.t.Helper()
	for _, p := range s.wrong(probes...) {
		s.t.Errorf("%s (%s) reaches %s: %v, want %v", p.from, p.source, p.to, !p.want, p.want)
	}
}

// closed waits until none of the probes connects.
func (s *stage) closed(what string, probes ...probe) {
	s.t.Helper()
	s.until(what, func() bool { return len(s.wrong(probes...)) == 0 })
}

// wrong tries all probes at once and returns those that do not end as wanted: for those that must not connect, a
// connection from the same place that is allowed to everybody is made beside them.
func (s *stage) wrong(probes ...probe) (wrong []probe) {
	s.t.Helper()
	var mu sync.Mutex
	is := func(p probe) { mu.Lock(); defer mu.Unlock(); wrong = append(wrong, p) }
	apart := map[string][]probe{} // by where they are from
	var trying sync.WaitGroup
	for _, p := range probes {
		if !p.want {
			apart[p.from] = append(apart[p.from], p)
			continue
		}
		trying.Go(func() {
			for range 3 { // a busy machine answers late
				if s.reaches(p.from, p.source, p.to) {
					return
				}
			}
			is(p)
		})
	}
	for from, probes := range apart {
		control := "203.0.113.9" // a public address
		switch from {
		case "host":
			control = "a1"
		case "world":
			control = "own"
		}
		trying.Go(func() {
			tries := map[testns.Try]probe{}
			for _, p := range probes {
				tries[s.try(p.from, p.source, p.to)] = p
			}
			reached, err := testns.Apart(s.t.Context(), s.try(from, "", control), slices.Collect(maps.Keys(tries))...)
			if err != nil {
				s.t.Error(err)
			}
			for _, try := range reached {
				is(tries[try])
			}
		})
	}
	trying.Wait()
	return wrong
}

// try is a connection to port 80, unless to has another.
func (s *stage) try(from, source, to string) testns.Try {
	s.t.Helper()
	r, ok := s.pods[from]
	switch from {
	case "host":
		r, ok = s.host, true
	case "world":
		r, ok = s.world, true
	}
	if !ok {
		s.t.Errorf("there is no %s", from)
	}
	if a, pod := s.addrs[to]; pod {
		to = a
	}
	if !strings.Contains(to, ":") {
		to += ":80"
	}
	return testns.Try{Room: r, From: source, To: to}
}

func (s *stage) reaches(from, source, to string) bool {
	s.t.Helper()
	try := s.try(from, source, to)
	return try.Room.Reaches(source, try.To)
}

func TestTenantsAreApart(t *testing.T) {
	s := newStage(t)
	for _, x := range [][2]string{{"a1", "own"}, {"a1", "b1"}, {"own", "a1"}, {"a1", "192.0.2.1"}, {"a1", "172.20.0.9"}} {
		s.open(x[0], "", x[1]) // without isolation all is open: the stage is sound
	}
	s.open("world", "10.71.0.9", "a1")
	s.run()
	s.check(
		// What is the consumer's own.
		probe{"a1", "", "a2", true}, probe{"a2", "", "a1", true},
		probe{"a1", "", "10.70.0.9", true}, probe{"world", "10.70.0.9", "a1", true},
		probe{"b1", "", "10.71.0.9", true}, probe{"world", "10.71.0.9", "b1", true},
		probe{"a1", "", "203.0.113.9", true}, // a public address
		// Another consumer's: pods here, and its home, both ways.
		probe{"a1", "", "b1", false}, probe{"b1", "", "a1", false},
		probe{"a1", "", "10.71.0.9", false}, probe{"world", "10.71.0.9", "a1", false},
		// The provider's own pods.
		probe{"a1", "", "own", false}, probe{"own", "", "a1", false}, probe{"b1", "", "own", false},
		// The host, by each of its addresses, its LAN and other private networks.
		probe{"a1", "", "10.42.0.1", false}, probe{"a1", "", "192.0.2.1", false}, probe{"a1", "", "192.0.2.2", false}, probe{"a1", "", "172.20.0.9", false},
		// The host reaches tenants: probes, logs.
		probe{"host", "", "a1", true}, probe{"host", "", "b1", true},
		// A peer without tenants here may come, and is not gone to.
		probe{"world", "10.72.0.9", "a1", false}, probe{"a1", "", "10.72.0.9", false},
		// The provider's own pods go everywhere.
		probe{"own", "", "10.71.0.9", true}, probe{"own", "", "192.0.2.1", true}, probe{"world", "10.71.0.9", "own", true},
	)
}

// On a worker: a consumer's pods on other nodes are its own, its API server is one port of the server, and the server
// reaches tenants as the host does; nothing else of other nodes is reached.
func TestAWorker(t *testing.T) {
	s := newStage(t)
	s.host.Do(func() error {
		return errors.Join(testns.Route("10.42.1.0/24", "192.0.2.2"), testns.Route("100.127.0.0/24", "192.0.2.2"))
	})
	s.world.Do(func() error {
		for _, cidr := range []string{"10.42.1.7/32", "10.42.1.8/32", "10.42.1.9/32", "100.127.0.1/32", "100.127.0.2/32"} {
			if err := testns.Give("lo", cidr); err != nil {
				return err
			}
		}
		return nil
	})
	s.world.Listen("100.127.0.1:17000")
	for _, to := range []string{"10.42.1.7", "100.127.0.1"} {
		s.open("a1", "", to)
	}
	s.server = netip.MustParseAddr("100.127.0.1")
	s.apart = []netip.Addr{netip.MustParseAddr("10.42.1.9"), netip.MustParseAddr(s.addrs["own"])} // the second is stale
	s.others = map[peer.ID][]netip.Addr{alice: {netip.MustParseAddr("10.42.1.7")}, bob: {netip.MustParseAddr("10.42.1.8")}}
	s.apis = map[peer.ID]netip.AddrPort{alice: netip.MustParseAddrPort("100.127.0.1:17000")}
	s.run()
	s.check(
		probe{"a1", "", "10.42.1.7", true}, probe{"world", "10.42.1.7", "a1", true},
		probe{"a1", "", "10.42.1.8", false}, probe{"world", "10.42.1.8", "a1", false}, probe{"world", "10.42.1.7", "b1", false},
		probe{"b1", "", "10.42.1.8", true}, probe{"own", "", "10.42.1.7", true},
		probe{"world", "10.42.1.9", "a1", true}, probe{"world", "10.42.1.9", "b1", true}, probe{"own", "", "a1", false}, probe{"a1", "", "10.42.1.9", false},
		probe{"world", "100.127.0.1", "a1", true}, probe{"world", "100.127.0.1", "b1", true}, probe{"world", "100.127.0.2", "a1", false},
		probe{"a1", "", "100.127.0.1", false}, probe{"a1", "", "100.127.0.2", false},
		// Alice's API server.
		probe{"a1", "", "100.127.0.1:17000", true}, probe{"b1", "", "100.127.0.1:17000", false},
	)
	// A pod that has gone elsewhere is none of hers any more.
	s.mu.Lock()
	s.others = nil
	s.mu.Unlock()
	s.poke <- struct{}{}
	s.closed("a1 does not reach it", none("a1", "", "10.42.1.7")...)
}

func TestATenantIsNobodyElse(t *testing.T) {
	s := newStage(t)
	a1 := s.pods["a1"]
	// With the address of the provider's own pod, or of another consumer's, it gets nowhere.
	a1.Do(func() error {
		return errors.Join(testns.Give("eth0", "10.42.0.10/32"), testns.Give("eth0", "10.42.0.77/32"))
	})
	s.open("a1", "10.42.0.77", "192.0.2.1") // as long as nobody minds
	s.run()
	s.check(probe{"a1", "10.42.0.10", "192.0.2.1", false}, probe{"a1", "10.42.0.77", "192.0.2.1", false},
		probe{"a1", "10.42.0.77", "b1", false}, probe{"a1", "10.42.0.11", "a2", true})
	// Nor by IPv6, which no pod has but the link's own.
	host := ""
	s.host.Do(func() error {
		l, err := netlink.LinkByName("cni0")
		if err != nil {
			return err
		}
		if err := netlink.AddrReplace(l, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("fe80::1"), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}); err != nil {
			return err
		}
		host = "[fe80::1%eth0]:81"
		return nil
	})
	v6 := func(name string) (ok bool) {
		s.pods[name].Do(func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			_ = netlink.AddrReplace(l, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("fe80::2"), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD})
			c, err := net.DialTimeout("tcp", host, time.Second)
			if ok = err == nil; ok {
				c.Close()
			}
			return nil
		})
		return ok
	}
	// The bridge takes a moment until it passes neighbour discovery on.
	s.until("a pod of the provider's own reaches the host by IPv6: the stage is sound", func() bool { return v6("own") })
	var own, tenant bool
	var trying sync.WaitGroup
	trying.Go(func() { own = v6("own") })
	trying.Go(func() { tenant = v6("a1") })
	if trying.Wait(); tenant || !own {
		t.Errorf("by IPv6 a tenant reaches the host: %v, a pod of the provider's own: %v", tenant, own)
	}
}

// What a pod's home says of an address here is true here: for the other pods of that home
// and for the pod itself, by TCP and UDP. It leads nowhere that the pod could not go anyway,
// and means nothing to others, though two homes may use the same prefix.
func TestAddressesAsHomeSeesThem(t *testing.T) {
	s := newStage(t)
	prefix := netip.MustParsePrefix("10.90.0.0/16")
	s.as = map[peer.ID]netip.Prefix{alice: prefix, bob: prefix}
	for _, name := range []string{"a1", "a2", "b1"} {
		s.pods[name].Echo("0.0.0.0:81")
	}
	s.run()
	s.check(
		probe{"a1", "", "10.90.0.12", true}, probe{"a2", "", "10.90.0.11", true}, probe{"a1", "", "10.90.0.11", true}, probe{"b1", "", "10.90.0.13", true},
		probe{"a1", "", "10.90.0.13", false}, probe{"b1", "", "10.90.0.11", false}, // another consumer's
		probe{"a1", "", "10.90.0.10", false}, probe{"a1", "", "10.90.0.1", false}, // the provider's pod and node
		probe{"own", "", "10.90.0.11", false},
		probe{"a1", "", "a2", true}, probe{"a2", "", "a1", true}, // and by its own address here, as ever
	)
	for _, to := range []string{"10.90.0.12:81", "10.90.0.11:81", "10.42.0.12:81"} {
		if !s.pods["a1"].Hears(to) {
			t.Errorf("UDP to %s is not answered", to)
		}
	}
	// A prefix that is another peer's here means that peer.
	s.mu.Lock()
	s.as[alice] = netip.MustParsePrefix("10.72.0.0/16")
	s.mu.Unlock()
	s.poke <- struct{}{}
	s.closed("the old prefix leads nowhere", none("a1", "", "10.90.0.12")...)
	s.check(probe{"a1", "", "10.72.0.12", false}, probe{"b1", "", "10.90.0.13", true})
}

// A controller whose class is lent reaches tenants, of all consumers; nothing of this
// cluster gets to them else, and they do not get to it.
func TestADoorLeadsToTenants(t *testing.T) {
	s := newStage(t)
	s.ingress = []string{"default"}
	s.run()
	s.check(probe{"own", "", "a1", true}, probe{"own", "", "b1", true}, probe{"a1", "", "own", false}, probe{"a1", "", "b1", false})
}

// Endpoints that a consumer tells of open what is on other peers, and nothing here.
func TestEndpointsOpenOnlyOtherPeers(t *testing.T) {
	s := newStage(t)
	s.told[alice] = []netip.Addr{netip.MustParseAddr("10.72.0.10"), netip.MustParseAddr("10.42.0.10"), netip.MustParseAddr("10.42.0.13"), netip.MustParseAddr("192.0.2.1")}
	s.run()
	s.check(append(none("a1", "", "10.72.0.9", "own", "b1", "192.0.2.1"),
		probe{"a1", "", "10.72.0.10", true}, probe{"world", "10.72.0.10", "a1", true})...)
}

// Tenants of a consumer whose API server is on this host reach that, and no other address and port of the host;
// tenants of others do not.
func TestTenantsReachTheirAPIServer(t *testing.T) {
	s := newStage(t)
	api := netip.MustParseAddrPort("192.0.2.1:17000")
	for _, port := range []string{":17000", ":17001"} {
		s.host.Listen("0.0.0.0" + port)
	}
	s.world.Listen("0.0.0.0:17000")
	nobody := func(addrs ...string) (out []probe) {
		for _, pod := range []string{"a1", "a2", "b1"} {
			out = append(out, none(pod, "", addrs...)...)
		}
		return out
	}
	set := func(all map[peer.ID]netip.AddrPort) {
		s.mu.Lock()
		s.apis = all
		s.mu.Unlock()
		s.poke <- struct{}{}
	}
	s.run()
	s.check(nobody(api.String())...) // before anybody has it
	set(map[peer.ID]netip.AddrPort{alice: api})
	s.until("alice's tenants reach it", func() bool {
		return len(s.wrong(probe{"a1", "", api.String(), true}, probe{"a2", "", api.String(), true})) == 0
	})
	s.check(append(nobody("192.0.2.1:17001", "192.0.2.1:80", "10.42.0.1:17000", "192.0.2.2:17000"), probe{"b1", "", api.String(), false})...)
	set(nil)
	s.closed("it is over", nobody(api.String())...)
}

// What comes by a node port that is a consumer's reaches its tenants, as long as the port is open; by others nothing
// does, and tenants do not reach those of another consumer.
func TestNodePortsOfTheLAN(t *testing.T) {
	s := newStage(t)
	c, err := nft.Open(int(s.host.NS))
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "proxy"})
	chain := c.AddChain(&nftables.Chain{Name: "pre", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	for port, pod := range map[uint16]string{31000: "a1", 31001: "a1", 31002: "b1"} {
		nft.Rule(c, chain, nft.Within(nft.Destination, netip.MustParsePrefix("192.0.2.1/32")), nft.TCPPort(port), []expr.Any{
			&expr.Immediate{Register: 1, Data: netip.MustParseAddr(s.addrs[pod]).AsSlice()}, &expr.Immediate{Register: 2, Data: []byte{0, 80}},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
		})
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	set := func(all map[peer.ID][]Port) {
		s.mu.Lock()
		s.lan = all
		s.mu.Unlock()
		s.poke <- struct{}{}
	}
	s.run()
	s.check(none("world", "", "192.0.2.1:31000")...) // before anybody has it
	set(map[peer.ID][]Port{alice: {{unix.IPPROTO_TCP, 31000}, {unix.IPPROTO_UDP, 31001}}, bob: {{unix.IPPROTO_TCP, 31000}}})
	s.open("world", "", "192.0.2.1:31000")
	s.check(append(none("world", "", "192.0.2.1:31001", "192.0.2.1:31002", "a1"), // of another protocol, and of another consumer
		none("b1", "", "192.0.2.1:31000")...)...)
	var open net.Conn
	s.world.Do(func() (err error) { open, err = net.DialTimeout("tcp", "192.0.2.1:31000", 5*time.Second); return err })
	defer open.Close()
	set(nil)
	s.closed("it is closed", none("world", "", "192.0.2.1:31000")...)
	flows, err := netlinkFlows(s)
	if err != nil || flows != 0 {
		t.Errorf("%d connections go on, %v", flows, err)
	}
}

// netlinkFlows counts connections that were led on from port 31000.
func netlinkFlows(s *stage) (n int, err error) {
	err = s.host.Try(func() error {
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		for _, f := range all {
			if (flowsBy{{unix.IPPROTO_TCP, 31000}: true}).MatchConntrackFlow(f) {
				n++
			}
		}
		return err
	})
	return n, err
}

// A consumer's Service that kube-proxy leads nowhere refuses connections, as at home; of those
// of others nobody is told even that.
func TestAServiceWithoutEndpointsRefuses(t *testing.T) {
	s := newStage(t)
	service := netip.MustParseAddr("10.43.9.7")
	s.run()
	refused := func(pod string) (is bool) {
		s.pods[pod].Do(func() error {
			c, err := net.DialTimeout("tcp", service.String()+":80", time.Second)
			if err == nil {
				c.Close()
			}
			is = errors.Is(err, unix.ECONNREFUSED)
			return nil
		})
		return is
	}
	if refused("a1") {
		t.Error("it is refused before anybody has such a Service")
	}
	set := func(all ...netip.Addr) {
		s.mu.Lock()
		s.leads = map[peer.ID][]netip.Addr{alice: all}
		s.mu.Unlock()
		s.poke <- struct{}{}
	}
	set(service, netip.MustParseAddr("10.43.9.8"))
	s.until("it is refused", func() bool { return refused("a1") })
	var alices, bobs bool
	var trying sync.WaitGroup
	trying.Go(func() { alices = refused("a1") })
	trying.Go(func() { bobs = refused("b1") })
	trying.Go(func() { s.check(probe{"a1", "", "a2", true}, probe{"a1", "", "192.0.2.1", false}) })
	if trying.Wait(); bobs || !alices {
		t.Errorf("alice is told that the address is a Service: %v, another consumer: %v", alices, bobs)
	}
	set()
	s.until("it is gone", func() bool { return !refused("a1") })
}

// Pods that come and go, tables that somebody removes: it is made good; and without
// tenants nothing is left behind.
func TestItFollows(t *testing.T) {
	s := newStage(t)
	s.run()
	s.pod("b2", "10.42.0.20")
	s.closed("the new pod is apart", none("a1", "", "b2")...)
	s.open("b1", "", "b2")

	flush := func() []*nftables.Table {
		c, err := nftables.New(nftables.WithNetNSFd(int(s.host.NS)))
		if err != nil {
			t.Fatal(err)
		}
		tables, err := c.ListTables()
		if err != nil {
			t.Fatal(err)
		}
		return tables
	}
	c, err := nftables.New(nftables.WithNetNSFd(int(s.host.NS)))
	if err != nil {
		t.Fatal(err)
	}
	c.FlushRuleset()
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	s.until("the tables are back", func() bool { return len(flush()) == 2 })
	s.check(none("a1", "", "b1")...)

	for _, name := range []string{"a1", "a2", "b1", "b2"} {
		s.unplug(name)
	}
	s.until("the tables are gone", func() bool { return len(flush()) == 0 })
}

// TestOwn: an address is of a pod of this cluster once a pass has seen that pod, and never while a tenant has it or is
// to get it.
func TestOwn(t *testing.T) {
	at := netip.MustParseAddr("10.42.0.5")
	there := map[string]bool{"veth1": true, "veth2": true, "veth3": true}
	h := NewHeld()
	h.exists = func(veth string) bool { return there[veth] }
	h.link = func(string) (netlink.Link, error) { return nil, errors.New("none") }
	check := func(what string, want bool) {
		t.Helper()
		if got := h.Own(at); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	check("nothing is known", false)
	own := podnet.Pod{Namespace: "lab", Addr: at, Veth: "veth1"}
	h.tenants([]podnet.Pod{own}, nil)
	check("a pod of this cluster runs", true)
	h.know(podnet.Pod{Namespace: "lab-alice", Addr: at, Veth: "veth2"}, alice)
	check("a tenant's network with its address is being made", false)
	h.tenants([]podnet.Pod{{Namespace: "lab-alice", Addr: at, Veth: "veth2"}}, map[string]peer.ID{"lab-alice": alice})
	check("the tenant has it", false)
	delete(there, "veth2")
	h.tenants(nil, nil)
	check("nobody has it", false)
	h.tenants([]podnet.Pod{{Namespace: "lab", Addr: at, Veth: "veth3"}}, nil)
	check("a pod of this cluster has it again", true)
}

// TestHas: an address is the newest pod's that has it, and of nobody once the interface is gone.
func TestHas(t *testing.T) {
	at := netip.MustParseAddr("10.42.0.5")
	there := map[string]bool{"veth1": true, "veth2": true}
	h := NewHeld()
	h.exists = func(veth string) bool { return there[veth] }
	h.link = func(string) (netlink.Link, error) { return nil, errors.New("none") }
	moved, stop := h.Changed()
	defer stop()
	check := func(what string, ofAlice, ofBob bool) {
		t.Helper()
		if a, b := h.Has(alice, at), h.Has(bob, at); a != ofAlice || b != ofBob {
			t.Errorf("%s: alice has it: %v, bob: %v", what, a, b)
		}
	}
	told := func(what string) {
		t.Helper()
		select {
		case <-moved:
		default:
			t.Errorf("%s: nobody is told", what)
		}
	}
	pods := []podnet.Pod{{Namespace: "lab-alice", Addr: at, Veth: "veth1"}}
	check("nothing is known", false, false)
	h.tenants(pods, map[string]peer.ID{"lab-alice": alice})
	check("her pod runs", true, false)
	told("her pod runs")
	if h.Has(alice, netip.MustParseAddr("10.42.0.6")) || h.Has(alice, netip.AddrFrom16(at.As16())) || h.Has(alice, netip.Addr{}) {
		t.Error("she has another address")
	}
	h.tenants(pods, map[string]peer.ID{"lab-alice": alice})
	select {
	case <-moved:
		t.Error("nothing has moved")
	default:
	}
	h.mu.Lock()
	h.know(podnet.Pod{Namespace: "lab-bob", Addr: at, Veth: "veth2"}, bob)
	h.mu.Unlock()
	told("his pod has the address now")
	check("his pod has the address now", false, true)
	delete(there, "veth2")
	check("his pod is gone, and nobody has looked", false, false)
	there["veth2"] = true
	h.tenants([]podnet.Pod{{Namespace: "default", Addr: at, Veth: "veth3"}}, nil)
	check("a pod of the device's owner has the address", false, false)
	h.tenants([]podnet.Pod{{Namespace: "lab-bob", Addr: at, Veth: "veth2"}}, nil)
	check("his again, whose namespace is gone", false, true)
	delete(there, "veth1")
	delete(there, "veth2")
	h.tenants(nil, nil)
	told("all are gone")
	check("all are gone", false, false)
}
