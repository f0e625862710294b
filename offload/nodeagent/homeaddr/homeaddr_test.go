package homeaddr

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/podnet"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

const alice, bob peer.ID = "alice", "bob"

var addr = netip.MustParseAddr

func cluster(ip string) At { return Cluster(addr(ip)) }

// Node ports of alice's node, of one Service.
var nodeTCP, nodeUDP = At{addr("100.127.1.1"), unix.IPPROTO_TCP, 80}, At{addr("100.127.1.1"), unix.IPPROTO_UDP, 80}

// A provider with its bridge and its kube-proxy, a pod of its own, pods of alice and bob.
// Both have a Service web at 10.43.5.5 at home, and so has the provider.
type stage struct {
	t       *testing.T
	host    testns.Room
	rooms   map[string]testns.Room
	results string
	changed chan struct{}

	mu       sync.Mutex
	services map[peer.ID]Services
	views    map[peer.ID]View
	err      error
}

// leads is what kube-proxy here does with its Services.
var leads = map[string]string{
	"10.43.5.5":  "10.42.0.10", // the provider's own web
	"10.43.6.6":  "10.42.0.10", // another one of its own
	"10.43.9.9":  "10.42.0.12", // alice's web: her a2
	"10.43.9.6":  "10.42.0.11", // another of hers: her a1
	"10.43.9.8":  "10.42.0.14", // bob's web: his b2
	"10.43.0.10": "10.42.0.10",
}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, host: testns.New(t), rooms: map[string]testns.Room{}, results: t.TempDir(), changed: make(chan struct{}, 1),
		services: map[peer.ID]Services{
			alice: {cluster("10.43.5.5"): addr("10.43.9.9"), cluster("10.43.5.7"): addr("10.43.9.7"), nodeTCP: addr("10.43.9.6"), nodeUDP: addr("10.43.9.6")},
			bob:   {cluster("10.43.5.5"): addr("10.43.9.8")},
		}}
	prefix := netip.MustParsePrefix
	s.views = map[peer.ID]View{
		alice: {{prefix("240.3.0.0/16"), prefix("10.42.0.0/16")}, {prefix("10.42.0.0/16"), prefix("240.5.0.0/16")}},
		bob:   {{prefix("240.3.0.0/16"), prefix("10.42.0.0/16")}, {prefix("10.42.0.0/16"), prefix("240.6.0.0/16")}},
	}
	s.host.Router()
	s.host.Bridge("cni0", "10.42.0.1/24")
	for i, name := range []string{"own", "a1", "a2", "b1", "b2"} {
		at := fmt.Sprintf("10.42.0.%d", 10+i)
		r := testns.New(t)
		mac := s.host.Plug("cni0", "veth"+name, r, at+"/24", "10.42.0.1")
		s.rooms[name] = r
		s.serve(r, name)
		ns := map[byte]string{'o': "default", 'a': "lab-alice", 'b': "lab-bob"}[name[0]]
		text := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"cniArgs":[["K8S_POD_NAMESPACE",%q]],
			"result":{"cniVersion":"1.0.0","interfaces":[{"name":%q},{"name":"eth0","mac":%q,"sandbox":"/x"}],"ips":[{"address":"%s/24"}]}}`, name, ns, "veth"+name, mac, at)
		if err := os.WriteFile(filepath.Join(s.results, "cbr0-"+name+"-eth0"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.kubeProxy()
	return s
}

// serve says the name to who connects, and sends UDP back.
func (s *stage) serve(r testns.Room, name string) {
	r.Do(func() error {
		l, err := net.Listen("tcp", ":80")
		if err != nil {
			return err
		}
		u, err := net.ListenPacket("udp", ":80")
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { l.Close(); u.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, name)
				c.Close()
			}
		}()
		go func() {
			b := make([]byte, 65536)
			for {
				n, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = u.WriteTo(b[:n], from)
			}
		}()
		return nil
	})
}

// kubeProxy leads cluster IPs to pods, and refuses what is for one without endpoints.
func (s *stage) kubeProxy() {
	c, err := nft.Open(int(s.host.NS))
	if err != nil {
		s.t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Name: "proxy", Family: nftables.TableFamilyIPv4})
	nat := func(name string, hook *nftables.ChainHook, priority nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityRef(priority)})
	}
	pre := nat("pre", nftables.ChainHookPrerouting, -100)
	for service, pod := range leads {
		nft.Rule(c, pre, nft.Within(nft.Destination, netip.PrefixFrom(addr(service), 32)), []expr.Any{
			&expr.Immediate{Register: 1, Data: addr(pod).AsSlice()},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
		})
	}
	post := nat("post", nftables.ChainHookPostrouting, 100) // who reaches itself
	for _, at := range []string{"10.42.0.10", "10.42.0.11", "10.42.0.12"} {
		self := netip.PrefixFrom(addr(at), 32)
		nft.Rule(c, post, nft.Within(nft.Source, self), nft.Within(nft.Destination, self), []expr.Any{&expr.Masq{}})
	}
	forward := nft.Base(c, table, "refuse", nftables.ChainHookForward, 0)
	nft.Rule(c, forward, nft.Within(nft.Destination, netip.MustParsePrefix("10.43.9.7/32")), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3}})
	if err := c.Flush(); err != nil {
		s.t.Fatal(err)
	}
	// What is refused has to be on its way somewhere, and not back to the bridge: the kernel
	// would send a redirect, and no other error for a while.
	s.host.Cable("out", testns.New(s.t), "in")
	s.host.Do(func() error {
		if err := testns.Give("out", "192.0.2.1/24"); err != nil {
			return err
		}
		return testns.Route("10.43.0.0/16", "192.0.2.2")
	})
}

// supervisor is a new one, which has seen nothing yet.
func (s *stage) supervisor() *Pods {
	p := New(addr("10.43.0.10"), netip.MustParsePrefix("10.43.0.0/16"))
	p.open = func(veth string) (*os.File, error) {
		gone := true
		s.host.Do(func() error {
			_, err := netlink.LinkByName(veth)
			gone = errors.As(err, new(netlink.LinkNotFoundError))
			return nil
		})
		if gone {
			return nil, podnet.ErrGone
		}
		fd, err := unix.Dup(int(s.rooms[veth[len("veth"):]].NS))
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), veth), nil
	}
	return p
}

func (s *stage) run(p *Pods) (end func()) {
	ctx, stop := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- p.Run(ctx, Config{Results: s.results, Changed: s.changed, Log: slog.New(slog.DiscardHandler),
			Twins: func() map[string]peer.ID { return map[string]peer.ID{"lab-alice": alice, "lab-bob": bob} },
			Services: func(id peer.ID) Services {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.services[id]
			},
			View: func(id peer.ID) View {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.views[id]
			},
			Report: func(err error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.err = err
			}})
	}()
	end = sync.OnceFunc(func() {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(end)
	return end
}

func (s *stage) set(id peer.ID, to Services) {
	s.mu.Lock()
	s.services[id] = to
	s.mu.Unlock()
	s.changed <- struct{}{}
}

func (s *stage) hold(p *Pods, name string, consumer peer.ID) {
	s.t.Helper()
	s.live(p, name, "", consumer)
}

func madeOf(name, here string) podnet.Pod {
	made := podnet.Pod{Veth: "veth" + name}
	made.Addr, _ = netip.ParseAddr(here)
	return made
}

// live holds the pod; with its address here it lives in home's addresses.
func (s *stage) live(p *Pods, name, here string, consumer peer.ID) (own netip.Addr) {
	s.t.Helper()
	ctx, stop := context.WithTimeout(s.t.Context(), time.Minute)
	defer stop()
	own, err := p.Hold(ctx, madeOf(name, here), consumer, here != "")
	if err != nil {
		s.t.Fatal(err)
	}
	return own
}

// answers is who answers the pod at the address; "" is nobody.
func (s *stage) answers(from, at string) (who string, failed error) {
	s.rooms[from].Do(func() error {
		c, err := net.DialTimeout("tcp", at, 2*time.Second)
		if err != nil {
			failed = err
			return nil
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		b, _ := io.ReadAll(c)
		who = string(b)
		return nil
	})
	return who, failed
}

func (s *stage) want(from, at, who string) {
	s.t.Helper()
	if who != "" { // on a busy machine it may take several tries
		s.until(fmt.Sprintf("%s answers %s at %s", who, from, at), func() bool { got, _ := s.answers(from, at); return got == who })
		return
	}
	if got, err := s.answers(from, at); got != who {
		s.t.Errorf("%s at %s: %q (%v), want %q", from, at, got, err, who)
	}
}

// refuses wants TCP and UDP refused at once.
func (s *stage) refuses(from, at string) {
	s.t.Helper()
	if who, err := s.answers(from, at); !errors.Is(err, syscall.ECONNREFUSED) {
		s.t.Errorf("%s at %s: %q, %v, want refused", from, at, who, err)
	}
	if !s.refused(from, at) {
		s.t.Errorf("%s is not told that UDP to %s leads nowhere", from, at)
	}
}

func (s *stage) until(what string, ok func() bool) {
	s.t.Helper()
	await.NoError(s.t, s.t.Context(), time.Minute, what, func() error {
		if ok() {
			return nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("it does not hold; last error: %v", s.err)
	})
}

// comesBack sends a datagram of the size and waits for the same.
func (s *stage) comesBack(from, at string, size int) (ok bool) {
	s.rooms[from].Do(func() error {
		c, err := net.Dial("udp", at) // hears from this address only
		if err != nil {
			return err
		}
		defer c.Close()
		sent := bytes.Repeat([]byte("rivulet"), size/7+1)[:size]
		got := make([]byte, 65536)
		for end := time.Now().Add(10 * time.Second); !ok && time.Now().Before(end); {
			_ = c.SetDeadline(time.Now().Add(500 * time.Millisecond))
			if _, err := c.Write(sent); err != nil {
				continue
			}
			n, err := c.Read(got)
			ok = err == nil && bytes.Equal(got[:n], sent)
		}
		return nil
	})
	return ok
}

// Two consumers and the provider have a Service of the same address, and each one's pods
// reach their own.
func TestEachReachesItsOwnHome(t *testing.T) {
	s := newStage(t)
	s.until("without the table all is the provider's: the stage is sound", func() bool {
		who, _ := s.answers("a1", "10.43.5.5:80")
		other, _ := s.answers("b1", "10.43.6.6:80")
		_, err := s.answers("b2", "10.43.9.7:80")
		return who == "own" && other == "own" && errors.Is(err, syscall.ECONNREFUSED)
	})
	p := s.supervisor()
	s.run(p)
	for name, id := range map[string]peer.ID{"a1": alice, "a2": alice, "b1": bob} {
		s.hold(p, name, id)
	}
	s.want("a1", "10.43.5.5:80", "a2")
	s.want("b1", "10.43.5.5:80", "b2")
	s.want("own", "10.43.5.5:80", "own")
	s.want("a2", "10.43.5.5:80", "a2") // itself
	for _, size := range []int{1, 1400, 5000, 60000} {
		if !s.comesBack("a1", "10.43.5.5:80", size) {
			t.Errorf("%d bytes of UDP do not come back from the address that they were sent to", size)
		}
	}
	// The provider's own Services, and the addresses of twins, are nobody's at home: refused at once, never dropped.
	for _, at := range []string{"10.43.6.6:80", "10.43.9.9:80", "10.43.9.8:80"} {
		s.refuses("a1", at)
	}
	s.want("a1", "10.43.0.10:80", "own") // cluster DNS
	s.want("a1", "10.42.0.12:80", "a2")  // pods are nothing to it
	// A node port leads to its Service, by its protocol; what the node has otherwise does not.
	s.want("a2", "100.127.1.1:80", "a1")
	s.want("a1", "100.127.1.1:80", "a1") // itself
	for _, size := range []int{1, 1400, 5000, 60000} {
		if !s.comesBack("a2", "100.127.1.1:80", size) {
			t.Errorf("%d bytes of UDP do not come back from the node port", size)
		}
	}
	s.want("a2", "100.127.1.1:81", "")
	s.want("b1", "100.127.1.1:80", "")
	// A Service without endpoints refuses at once, as at home.
	if _, err := s.answers("a1", "10.43.5.7:80"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a Service without endpoints: %v, want refused", err)
	}
}

func TestItFollows(t *testing.T) {
	s := newStage(t)
	p := s.supervisor()
	end := s.run(p)
	s.hold(p, "a1", alice)
	s.hold(p, "a2", alice)
	s.want("a1", "10.43.5.5:80", "a2")
	s.set(alice, Services{cluster("10.43.5.5"): addr("10.43.9.6")})
	s.until("the Service was made anew in the twin", func() bool { who, _ := s.answers("a2", "10.43.5.5:80"); return who == "a1" })
	// The table stays while nobody is there, and is found again; pods that never had it keep
	// what they were told.
	end()
	s.want("a2", "10.43.5.5:80", "a1")
	p = s.supervisor()
	s.mu.Lock()
	s.services[alice] = Services{cluster("10.43.5.5"): addr("10.43.9.9")}
	s.mu.Unlock()
	s.run(p)
	s.until("what changed meanwhile is in force", func() bool { who, _ := s.answers("a1", "10.43.5.5:80"); return who == "a2" })
	s.want("b1", "10.43.5.5:80", "own")
	// Pods that go are forgotten.
	s.host.Do(func() error {
		l, err := netlink.LinkByName("vetha2")
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	s.set(alice, nil)
	s.until("a pod that has gone is forgotten", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.byVeth["vetha2"] == nil && len(p.byVeth["vetha1"].now.services) == 0 && s.noProblem()
	})
	s.refuses("a1", "10.43.5.5:80")
}

func (s *stage) noProblem() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.err == nil }

// As long as the Services are not known, or the table cannot be written, there is no network.
func TestItFailsClosed(t *testing.T) {
	p := New(addr("10.43.0.10"), netip.MustParsePrefix("10.43.0.0/16"))
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if _, err := p.Hold(ctx, podnet.Pod{Veth: "vetha1"}, alice, false); err == nil {
		t.Error("a pod gets a network before the Services of its home are known")
	}
	p.open = func(string) (*os.File, error) { return nil, podnet.ErrGone }
	p.cfg = &Config{Services: func(peer.ID) Services { return nil }}
	close(p.known)
	if _, err := p.Hold(t.Context(), podnet.Pod{Veth: "vetha1"}, alice, false); err == nil || len(p.byVeth) > 0 {
		t.Errorf("a pod without a namespace: %v", err)
	}
}

// However many Services a consumer has: the pod starts, and Most count.
func TestServicesAreBounded(t *testing.T) {
	s := newStage(t)
	many := Services{}
	for i := range 2 * Most {
		many[Cluster(netip.AddrFrom4([4]byte{10, 43, 16 + byte(i>>8), byte(i)}))] = netip.AddrFrom4([4]byte{10, 43, 128 + byte(i>>8), byte(i)})
	}
	s.services[alice] = many
	p := s.supervisor()
	s.run(p)
	s.hold(p, "a1", alice)
	c, err := nft.Open(int(s.rooms["a1"].NS))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{toHere, toHome} {
		set, err := c.GetSetByName(&nftables.Table{Name: Table, Family: nftables.TableFamilyIPv4}, name)
		if err != nil {
			t.Fatal(err)
		}
		if all, err := c.GetSetElements(set); err != nil || len(all) != Most {
			t.Errorf("%s has %d elements (%v), want %d", name, len(all), err, Most)
		}
	}
}

// Whatever a consumer says of its Services, addresses have one other, both ways.
func TestMapIsOneToOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Custom(func(t *rapid.T) netip.Addr {
			return rapid.SampledFrom([]netip.Addr{{}, addr("::1"), addr("127.0.0.1"), addr("0.0.0.0"), addr("224.0.0.1"),
				addr("10.43.0.1"), addr("10.43.0.2"), addr("10.43.0.3"), addr("192.0.2.1")}).Draw(t, "addr")
		})
		var all []Reflected
		for range rapid.IntRange(0, 12).Draw(t, "n") {
			all = append(all, Reflected{Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "ns"), Name: rapid.StringMatching(`[a-c]`).Draw(t, "name"),
				Home: one.Draw(t, "home"), Ports: rapid.SampledFrom([]string{"", "TCP/1", "TCP/1,UDP/1,SCTP/2", "UDP/1,UDP/1", "TCP/0", "ICMP/7", "nonsense"}).Draw(t, "ports"), Here: one.Draw(t, "here")})
		}
		homes := map[netip.Addr]netip.Addr{}
		for at, here := range Map(all) {
			if home, twice := homes[here]; twice && home != at.Addr || !usable(at.Addr) || !here.Is4() || (at.Port == 0) != (at.Protocol == 0) {
				t.Fatalf("%v leads to %v", at, here)
			}
			homes[here] = at.Addr
		}
	})
}
