package isolation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/podnet"
)

// made is what the container network asks for before it is finished.
func (s *stage) made(name string) podnet.Pod {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.results, "cbr0-"+name+"-eth0"))
	if err != nil {
		s.t.Fatal(err)
	}
	dir := s.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	pods, err := podnet.Read(dir, s.held.exists)
	if err != nil || len(pods) != 1 {
		s.t.Fatal(pods, err)
	}
	return pods[0]
}

// ask makes a pod of a consumer and asks for its isolation, as the CNI plugin does: its
// result is not written yet.
func (s *stage) ask(name, addr string, consumer peer.ID) error {
	s.t.Helper()
	s.pod(name, addr)
	pod := s.made(name)
	if err := os.Remove(filepath.Join(s.results, "cbr0-"+name+"-eth0")); err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	return s.held.Hold(ctx, pod, consumer)
}

func (s *stage) flush() {
	s.t.Helper()
	c, err := nft.Open(int(s.host.NS))
	if err != nil {
		s.t.Fatal(err)
	}
	c.FlushRuleset()
	if err := c.Flush(); err != nil {
		s.t.Fatal(err)
	}
}

// The attack: a consumer that names more endpoints than fit, on a peer that it may have
// invented. Its own pods that start then are held, those of others keep all of theirs.
func TestEndpointsWithoutNumber(t *testing.T) {
	s := newStage(t)
	s.told[bob] = []netip.Addr{netip.MustParseAddr("10.72.0.10")}
	for i := range 20000 {
		s.told[alice] = append(s.told[alice], netip.AddrFrom4([4]byte{10, 72, byte(100 + i/250), byte(i % 250)}))
	}
	s.run()
	s.until("the excess is shown", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.less[alice] != nil })
	s.mu.Lock()
	ofBob := s.less[bob]
	s.mu.Unlock()
	if ofBob != nil {
		t.Errorf("bob has done nothing: %v", ofBob)
	}
	if err := s.ask("a3", "10.42.0.30", alice); err != nil {
		t.Fatal(err)
	}
	s.check(append(none("a3", "", "own", "b1", "192.0.2.1", "10.42.0.1"), probe{"a3", "", "a1", true}, probe{"b1", "", "10.72.0.10", true})...)
	s.mu.Lock()
	s.told[alice] = []netip.Addr{netip.MustParseAddr("10.72.0.10")}
	s.mu.Unlock()
	s.poke <- struct{}{}
	s.until("the problem goes with its cause", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.less[alice] == nil })
	s.check(probe{"a3", "", "10.72.0.10", true})
}

// The bounds: what counts, and how much is looked at for it.
func TestElsewhere(t *testing.T) {
	home := map[peer.ID]netip.Prefix{alice: netip.MustParsePrefix("10.70.0.0/16"), carol: netip.MustParsePrefix("10.72.0.0/16")}
	named := func(n int, second byte) func(func(netip.Addr) bool) {
		return func(yield func(netip.Addr) bool) {
			for i := range n {
				if !yield(netip.AddrFrom4([4]byte{10, second, byte(i >> 8), byte(i)})) {
					return
				}
			}
		}
	}
	for _, c := range []struct {
		n      int
		second byte
		found  int
		whole  bool
	}{{maxEndpoints, 72, maxEndpoints, true}, {maxEndpoints + 1, 72, maxEndpoints, false}, {60000, 72, maxEndpoints, false},
		{maxNamed, 70, 0, true}, {maxNamed + 1, 70, 0, false}, {maxNamed, 99, 0, true}} {
		found, whole := elsewhere(named(c.n, c.second), alice, home)
		if len(found) != c.found || whole != c.whole {
			t.Errorf("%+v: %d, %v", c, len(found), whole)
		}
	}
}

// What the kernel refuses of one consumer's endpoints is that consumer's loss alone.
func TestEndpointsThatFailAreOneConsumersLoss(t *testing.T) {
	s := newStage(t)
	k := newTables(nft.NewGuard(int(s.host.NS), slog.New(slog.DiscardHandler)))
	carols := netip.MustParseAddr("10.72.0.10")
	w := world{DNS: netip.MustParseAddr("10.43.0.10")}
	w.Consumers = []consumer{{ID: alice, Tenants: []netip.Addr{netip.MustParseAddr("10.42.0.11")}}, {ID: bob, Tenants: []netip.Addr{netip.MustParseAddr("10.42.0.13")}, Endpoints: []netip.Addr{carols}}}
	for _, name := range []string{"a1", "b1"} {
		p := s.made(name)
		w.Tenants = append(w.Tenants, tenant{Addr: p.Addr, Veth: p.Veth, MAC: p.MAC})
	}
	bad := w
	bad.Consumers = append([]consumer{}, w.Consumers...)
	bad.Consumers[0].Endpoints = []netip.Addr{carols, netip.MustParseAddr("2001:db8::1")} // no key of this set
	for _, step := range []string{"made anew", "in place"} {
		if step == "in place" {
			if lost, err := k.build(w); err != nil || len(lost) != 0 {
				t.Fatal(lost, err)
			}
		}
		lost, err := k.build(bad)
		if err != nil || lost[alice] == nil || lost[bob] != nil {
			t.Fatalf("%s: %v %v", step, lost, err)
		}
		s.check(append(none("a1", "", "own", "10.72.0.10"), probe{"b1", "", "10.72.0.10", true}, probe{"b1", "", "own", false})...)
	}
}

// A pod is held before its network is finished, and where it cannot be, the answer is no.
func TestNoNetworkWithoutIsolation(t *testing.T) {
	s := newStage(t)
	ctx, stop := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer stop()
	if err := s.held.Hold(ctx, s.made("a1"), alice); err == nil {
		t.Fatal("a tenant was admitted while nobody isolates")
	}
	s.run()
	if err := s.ask("a3", "10.42.0.30", alice); err != nil {
		t.Fatal(err)
	}
	s.check(probe{"a3", "", "own", false}, probe{"a3", "", "a1", true})
	// Its namespace is not known here as a twin: the kubelet was faster than the watch.
	if err := s.ask("c9", "10.42.0.31", carol); err != nil {
		t.Fatal(err)
	}
	s.check(none("c9", "", "own", "b1")...)
	// One whose interface is gone again.
	gone := podnet.Pod{Namespace: "lab-alice", Addr: netip.MustParseAddr("10.42.0.32"), Veth: "vethgone", MAC: "0a:00:00:00:00:09"}
	ctx, stop = context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	if err := s.held.Hold(ctx, gone, alice); err == nil {
		t.Error("a pod without an interface was admitted")
	}
}

// A tenant stays one while it has its interface, even when its namespace is gone.
func TestOnceATenant(t *testing.T) {
	s := newStage(t)
	s.run()
	s.check(none("b1", "", "own")...)
	s.mu.Lock()
	s.twins = map[string]peer.ID{"lab-alice": alice}
	passes := s.passes
	s.mu.Unlock()
	s.poke <- struct{}{}
	s.until("a pass without bob's twin", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.passes > passes })
	s.check(none("b1", "", "own", "192.0.2.1")...)
}

// The next supervisor holds it, too.
func TestOnceATenantAfterARestart(t *testing.T) {
	s := newStage(t)
	end := s.run()
	s.check(none("b1", "", "own")...)
	end()
	s.check(none("b1", "", "own")...) // nobody is there, the tables are
	s.twins = map[string]peer.ID{"lab-alice": alice}
	s.supervisor()
	s.run()
	s.check(probe{"b1", "", "own", false}, probe{"a1", "", "a2", true}, probe{"own", "", "192.0.2.1", true})
}

// A kernel that shows packets between pods to no rule isolates nothing.
func TestRulesThatSeeNothing(t *testing.T) {
	s := newStage(t)
	s.run()
	s.mu.Lock()
	s.bridged = false
	s.mu.Unlock()
	if err := s.ask("a3", "10.42.0.30", alice); err == nil || !strings.Contains(err.Error(), "br_netfilter") {
		t.Errorf("a tenant was admitted: %v", err)
	}
}

// Tables that somebody removes are back at once, and what got through is cut.
func TestFlushedRules(t *testing.T) {
	s := newStage(t)
	s.run()
	s.check(none("a1", "", "own")...)
	tables := func() int {
		n, err := nft.Stand(int(s.host.NS), Table, nftables.TableFamilyIPv4, nftables.TableFamilyBridge)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i := range 5 {
		s.flush()
		begun := time.Now()
		s.until("the tables are back", func() bool { return tables() == 2 })
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("they were away for %v", took)
		}
		if err := s.ask(fmt.Sprint("a", 5+i), fmt.Sprint("10.42.0.", 40+i), alice); err != nil {
			t.Fatal(err)
		}
		s.check(none(fmt.Sprint("a", 5+i), "", "own")...)
	}
}

// A flow to a pod does not outlive the pod: who gets its address next gets no packet of it.
func TestAFlowEndsWithItsPod(t *testing.T) {
	s := newStage(t)
	s.run()
	echo := func(pod string) net.PacketConn {
		var l net.PacketConn
		s.pods[pod].Do(func() (err error) {
			l, err = net.ListenPacket("udp", s.addrs[pod]+":7")
			return err
		})
		t.Cleanup(func() { l.Close() })
		go func() {
			b := make([]byte, 64)
			for {
				n, from, err := l.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = l.WriteTo(b[:n], from)
			}
		}()
		return l
	}
	socket := func(from, to string) net.Conn {
		var c net.Conn
		s.pods[from].Do(func() (err error) {
			c, err = net.Dial("udp", to+":7")
			return err
		})
		t.Cleanup(func() { c.Close() })
		return c
	}
	answered := func(c net.Conn) bool {
		_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := c.Write([]byte("x")); err != nil {
			return false
		}
		_, err := c.Read(make([]byte, 1))
		return err == nil
	}
	echo("a2")
	at := s.addrs["a2"]
	old := socket("a1", at)
	s.until("a1's flow to a2 is established", func() bool { return answered(old) })

	s.unplug("a2")
	s.pod("own2", at)
	echo("own2")
	s.pods["a1"].Do(func() error { // it would learn the new MAC address by itself within a minute
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		neighbours, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_V4)
		for i := range neighbours {
			if neighbours[i].IP.String() == at {
				err = errors.Join(err, netlink.NeighDel(&neighbours[i]))
			}
		}
		return err
	})
	control := socket("own", at)
	s.until("the provider's own pods reach the one that has the address now", func() bool { return answered(control) })
	for range 5 {
		if answered(old) {
			t.Fatal("the old flow is answered by a pod of the provider")
		}
	}
}

// A connection from before the rules does not outlive them, one that is allowed does.
func TestConnectionsFromBefore(t *testing.T) {
	s := newStage(t)
	s.open("a1", "", "own")
	dial := func(from, to string) net.Conn {
		var c net.Conn
		s.pods[from].Do(func() (err error) {
			c, err = net.DialTimeout("tcp", s.addrs[to]+":7", 5*time.Second)
			return err
		})
		t.Cleanup(func() { c.Close() })
		return c
	}
	for _, name := range []string{"own", "a2"} {
		s.pods[name].Do(func() error {
			l, err := net.Listen("tcp", s.addrs[name]+":7")
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() { _, _ = io.Copy(c, c); c.Close() }()
				}
			}()
			return nil
		})
	}
	echo := func(c net.Conn) error {
		_ = c.SetDeadline(time.Now().Add(3 * time.Second))
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 1))
		return err
	}
	forbidden, allowed := dial("a1", "own"), dial("a1", "a2")
	for _, c := range []net.Conn{forbidden, allowed} {
		if err := echo(c); err != nil {
			t.Fatal(err)
		}
	}
	s.run()
	cut := make(chan error, 1)
	go func() { cut <- echo(forbidden) }()
	if err := echo(allowed); err != nil {
		t.Errorf("a connection within the consumer was cut: %v", err)
	}
	if err := <-cut; err == nil {
		t.Error("a connection to the provider's own pod goes on")
	}
}
