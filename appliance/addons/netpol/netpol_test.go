package netpol

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
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"rivulet/fabric/nft"
	"rivulet/offload/networkpolicy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// A device with its bridge and four pods: web, job and db of namespace lab, and tool of
// namespace ops; beyond a router the rest of the world.
type stage struct {
	t       *testing.T
	host    testns.Room
	outside testns.Room
	rooms   map[string]testns.Room
	results string
	stop    func()

	mu      sync.Mutex
	world   networkpolicy.World
	changed chan struct{}
	err     error
	passes  int
}

func (s *stage) World() (networkpolicy.World, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.world, true
}

func (s *stage) Changed() (<-chan struct{}, func()) { return s.changed, func() {} }

var addrs = map[string]string{"web": "10.42.0.10", "job": "10.42.0.11", "db": "10.42.0.12", "tool": "10.42.0.13"}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, host: testns.New(t), outside: testns.New(t), rooms: map[string]testns.Room{}, results: t.TempDir(), changed: make(chan struct{}, 1)}
	s.host.Router()
	s.host.Bridge("cni0", "10.42.0.1/24")
	s.host.Cable("out", s.outside, "in")
	s.host.Do(func() error {
		return errors.Join(testns.Give("out", "192.0.2.1/24"), testns.Route("203.0.113.0/24", "192.0.2.2"))
	})
	s.outside.Do(func() error {
		return errors.Join(testns.Give("in", "192.0.2.2/24"), testns.Give("lo", "203.0.113.1/32"), testns.Give("lo", "203.0.113.200/32"), testns.Route("10.42.0.0/16", "192.0.2.1"))
	})
	// As kube-proxy does: its rules have connections tracked from the beginning.
	c, err := nft.Open(int(s.host.NS))
	if err != nil {
		t.Fatal(err)
	}
	track := c.AddTable(&nftables.Table{Name: "track", Family: nftables.TableFamilyIPv4})
	nft.Rule(c, nft.Base(c, track, "forward", nftables.ChainHookForward, 0), nft.Established, nft.Accept)
	if err := c.Flush(); err != nil {
		t.Skipf("needs nf_tables: %v", err)
	}
	s.world.Namespaces = map[string]labels.Set{"lab": {"team": "a"}, "ops": {"team": "b"}}
	for _, name := range []string{"web", "job", "db", "tool"} {
		s.pod(name, addrs[name])
	}
	s.host.Listen("0.0.0.0:80")
	s.host.Listen("[::]:82")
	s.outside.Listen("0.0.0.0:80")
	return s
}

// pod makes one, as the container network says it and the API server will.
func (s *stage) pod(name, addr string) {
	s.t.Helper()
	r := testns.New(s.t)
	mac := s.host.Plug("cni0", "veth"+name, r, addr+"/24", "10.42.0.1")
	for _, port := range []int{80, 81, 90} {
		r.Listen(fmt.Sprintf("0.0.0.0:%d", port))
	}
	r.Echo("0.0.0.0:53")
	s.rooms[name] = r
	ns := "lab"
	if name == "tool" {
		ns = "ops"
	}
	s.result(name, ns, addr, mac)
	s.mu.Lock()
	defer s.mu.Unlock()
	// Its address is not there: the API server hears of that later.
	s.world.Pods = append(s.world.Pods, networkpolicy.Pod{Namespace: ns, Name: name, UID: name, Labels: labels.Set{"app": name}, Ports: []networkpolicy.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Number: 81}}})
}

func (s *stage) result(name, ns, addr, mac string) {
	text := fmt.Sprintf(`{"cniArgs":[["K8S_POD_NAMESPACE",%q],["K8S_POD_NAME",%q],["K8S_POD_UID",%q]],"result":{"interfaces":[{"name":"cni0"},{"name":%q},{"name":"eth0","mac":%q,"sandbox":"/x"}],"ips":[{"address":"%s/24"}]}}`,
		ns, name, name, "veth"+name, mac, addr)
	if err := os.WriteFile(filepath.Join(s.results, "cbr0-"+name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// run starts the enforcer; it may be called again after stop.
func (s *stage) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	keeper := nft.NewGuard(int(s.host.NS), slog.New(slog.DiscardHandler))
	go keeper.Run(ctx, func() {})
	go func() {
		done <- Run(ctx, Config{World: s, Results: s.results, Log: slog.New(slog.DiscardHandler), Guard: keeper,
			exists: func(string) bool { return true }, bridged: func() bool { return true },
			Report: func(err error) {
				s.mu.Lock()
				s.err, s.passes = err, s.passes+1
				s.mu.Unlock()
			}})
	}()
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				s.t.Error(err)
			}
		})
	}
	s.t.Cleanup(s.stop)
}

// policies puts these into force.
func (s *stage) policies(all ...*networkingv1.NetworkPolicy) {
	s.t.Helper()
	s.mu.Lock()
	s.world.Policies = all
	s.mu.Unlock()
	s.settle()
}

// settle waits for a pass over what is there now, and for it to succeed.
func (s *stage) settle() {
	s.t.Helper()
	s.mu.Lock()
	before := s.passes
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
	s.until("a pass", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.passes > before+1 || s.passes > before && len(s.changed) == 0
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		s.t.Fatal(s.err)
	}
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

func (s *stage) room(name string) testns.Room {
	switch name {
	case "host":
		return s.host
	case "outside":
		return s.outside
	}
	return s.rooms[name]
}

func addr(name string) string {
	if a, ok := addrs[name]; ok {
		return a
	}
	return name
}

func (s *stage) check(from, to string, port int, want bool) {
	s.t.Helper()
	if got := s.room(from).Reaches("", fmt.Sprintf("%s:%d", addr(to), port)); got != want {
		s.t.Errorf("%s reaches %s:%d: %v, want %v", from, to, port, got, want)
	}
}

func app(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

func policy(name string, pods metav1.LabelSelector, in []networkingv1.NetworkPolicyIngressRule, out []networkingv1.NetworkPolicyEgressRule, types ...networkingv1.PolicyType) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name}, Spec: networkingv1.NetworkPolicySpec{PodSelector: pods, Ingress: in, Egress: out, PolicyTypes: types}}
}

func tcp(port intstr.IntOrString, end int32) networkingv1.NetworkPolicyPort {
	p := networkingv1.NetworkPolicyPort{Port: &port}
	if end != 0 {
		p.EndPort = &end
	}
	return p
}

var denyAll = policy("deny", metav1.LabelSelector{}, nil, nil, "Ingress", "Egress")

// held counts our tables.
func (s *stage) held() int {
	n, err := nft.Stand(int(s.host.NS), Table, families...)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func TestPoliciesHoldPods(t *testing.T) {
	s := newStage(t)
	for _, c := range [][2]string{{"web", "db"}, {"tool", "db"}, {"outside", "db"}, {"db", "203.0.113.1"}} {
		s.until("the stage is sound", func() bool { return s.room(c[0]).Reaches("", addr(c[1])+":80") })
	}
	s.until("UDP passes before", func() bool { return s.rooms["web"].Hears(addr("db") + ":53") })
	s.run()
	s.settle()
	if s.held() != 0 {
		t.Fatal("tables without policies")
	}
	under := s.connect("web", "db")
	s.policies(denyAll)
	under() // a connection goes on

	s.check("web", "db", 80, false)
	s.check("web", "tool", 80, false) // out of a pod that is held
	s.check("tool", "web", 80, false) // into one
	s.check("outside", "db", 80, false)
	s.check("db", "203.0.113.1", 80, false)
	if s.rooms["web"].Hears(addr("db") + ":53") {
		t.Error("UDP passes")
	}
	// Nodes, and what no policy holds.
	s.check("host", "db", 80, true)
	s.check("db", "10.42.0.1", 80, true)
	s.check("tool", "203.0.113.1", 80, true)
	s.check("outside", "tool", 80, true)
	s.check("db", "db", 80, true)

	// web may talk to db's port named http (81) and to 85-95, UDP 53; both sides have to say so.
	udp := corev1.ProtocolUDP
	dns := intstr.FromInt32(53)
	ports := []networkingv1.NetworkPolicyPort{tcp(intstr.FromString("http"), 0), tcp(intstr.FromInt32(85), 95), {Protocol: &udp, Port: &dns}}
	in := policy("db", *app("db"), []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: app("web")}}, Ports: ports}}, nil, "Ingress")
	s.policies(denyAll, in)
	s.check("web", "db", 81, false)
	out := policy("web", *app("web"), nil, []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{PodSelector: app("db")}}}}, "Egress")
	s.policies(denyAll, in, out)
	s.check("web", "db", 81, true)
	s.check("web", "db", 90, true)
	s.check("web", "db", 80, false)
	s.check("job", "db", 81, false)
	if !s.rooms["web"].Hears(addr("db") + ":53") {
		t.Error("UDP does not pass")
	}

	// Another namespace; the world but for a part of it, both ways.
	world := []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"203.0.113.128/25", "10.0.0.0/8"}}}}
	ops := policy("ops", *app("db"), []networkingv1.NetworkPolicyIngressRule{
		{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}}, PodSelector: app("tool")}}},
		{From: world}},
		[]networkingv1.NetworkPolicyEgressRule{{To: world}}, "Ingress", "Egress")
	s.policies(denyAll, in, out, ops)
	s.check("tool", "db", 80, true)
	s.check("db", "203.0.113.1", 80, true)
	s.check("db", "203.0.113.200", 80, false)
	s.check("outside", "db", 80, true) // from 192.0.2.2
	if s.outside.Reaches("203.0.113.200", addr("db")+":80") {
		t.Error("an address that is excepted comes in")
	}
	s.check("job", "db", 80, false)

	s.policies()
	if s.held() != 0 {
		t.Error("tables stay when the last policy has gone")
	}
	s.check("job", "db", 80, true)
}

// connect opens a connection that stays, and returns a check that it still carries.
func (s *stage) connect(from, to string) func() {
	s.t.Helper()
	s.room(to).Do(func() error {
		l, err := net.Listen("tcp", "0.0.0.0:70")
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { l.Close() })
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = io.Copy(c, c)
			}
		}()
		return nil
	})
	var c net.Conn
	s.room(from).Do(func() (err error) {
		c, err = net.DialTimeout("tcp", addr(to)+":70", 5*time.Second)
		return err
	})
	s.t.Cleanup(func() { c.Close() })
	carries := func() {
		s.t.Helper()
		b := []byte("x")
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Write(b); err != nil {
			s.t.Error(err)
		} else if _, err := io.ReadFull(c, b); err != nil {
			s.t.Errorf("a connection that was under way has ended: %v", err)
		}
	}
	carries()
	return carries
}

// A Service's address is no way around, and a pod reaches itself by it.
func TestServicesLeadToPods(t *testing.T) {
	s := newStage(t)
	c, err := nft.Open(int(s.host.NS))
	if err != nil {
		t.Fatal(err)
	}
	nat := c.AddTable(&nftables.Table{Name: "services", Family: nftables.TableFamilyIPv4})
	pre := c.AddChain(&nftables.Chain{Name: "pre", Table: nat, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	post := c.AddChain(&nftables.Chain{Name: "post", Table: nat, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	db := netip.MustParseAddr(addr("db"))
	nft.Rule(c, pre, nft.Within(nft.Destination, netip.MustParsePrefix("10.43.0.5/32")), []expr.Any{
		&expr.Immediate{Register: 1, Data: db.AsSlice()}, &expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(81)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2}})
	// As kube-proxy does where a pod comes back to itself.
	nft.Rule(c, post, nft.Within(nft.Source, netip.PrefixFrom(db, 32)), nft.Within(nft.Destination, netip.PrefixFrom(db, 32)), []expr.Any{&expr.Masq{}})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	s.until("the Service works before", func() bool { return s.rooms["web"].Reaches("", "10.43.0.5:80") })
	s.run()
	s.policies(denyAll)
	s.check("web", "10.43.0.5", 80, false)
	s.check("db", "10.43.0.5", 80, true)
	// Port 81 is what is asked for, where the connection arrives: not the Service's 80.
	s.policies(denyAll,
		policy("db", *app("db"), []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: app("web")}}, Ports: []networkingv1.NetworkPolicyPort{tcp(intstr.FromInt32(81), 0)}}}, nil, "Ingress"),
		policy("web", *app("web"), nil, []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{PodSelector: app("db")}}, Ports: []networkingv1.NetworkPolicyPort{tcp(intstr.FromString("http"), 0)}}}, "Egress"))
	s.check("web", "10.43.0.5", 80, true)
	s.check("job", "10.43.0.5", 80, false)
}

// Who is held sends as nobody else, and has no other way than IPv4.
func TestAHeldPodIsNobodyElse(t *testing.T) {
	s := newStage(t)
	job := s.rooms["job"]
	job.Do(func() error { return testns.Give("eth0", "10.42.0.77/32") })
	reaches := func() bool { return job.Reaches("10.42.0.77", addr("tool")+":80") }
	s.until("a forged address passes before", reaches)
	link := func(r testns.Room, name, address string) {
		r.Do(func() error {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return netlink.AddrReplace(l, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD})
		})
	}
	link(s.rooms["tool"], "eth0", "fe80::1")
	s.rooms["tool"].Listen("[::]:82")
	six := func(name, from string) func() bool {
		link(s.rooms[name], "eth0", from)
		return func() bool { return s.rooms[name].Reaches("", "[fe80::1%eth0]:82") }
	}
	jobs := six("job", "fe80::2")
	s.until("IPv6 passes before", jobs)
	s.run()
	s.policies(denyAll)
	if reaches() {
		t.Error("a forged address passes")
	}
	if jobs() {
		t.Error("IPv6 passes")
	}
	s.check("tool", "10.42.0.1", 80, true)
}

// Pods that come, go and change their addresses; tables that somebody removes; an
// enforcer that ends and comes back.
func TestItFollows(t *testing.T) {
	s := newStage(t)
	s.run()
	allow := policy("db", *app("db"), []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: app("web")}}}}, nil, "Ingress")
	s.policies(allow)
	s.check("web", "db", 80, true)
	s.check("job", "db", 80, false)
	before := s.chains()

	// web and job change places: elements change, nothing else does.
	s.result("web", "lab", addr("job"), "")
	s.result("job", "lab", addr("web"), "")
	s.until("the one at web's address is not let in any more", func() bool { return !s.rooms["web"].Reaches("", addr("db")+":80") })
	s.check("job", "db", 80, true)
	if after := s.chains(); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("chains were made anew: %v, %v", before, after)
	}

	// A pod that the API server forgets is held as long as it has its network.
	s.mu.Lock()
	pods := s.world.Pods
	s.world.Pods = append([]networkpolicy.Pod{}, pods[0], pods[1], pods[3])
	s.mu.Unlock()
	s.settle()
	s.check("web", "db", 80, false)

	// Another policy of the same pod adds to the first; a new kind of pod is a new class.
	s.policies(allow, policy("tool", *app("db"), []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}}}, nil, "Ingress"))
	s.check("web", "db", 80, true)
	s.policies(allow)
	s.check("web", "db", 80, false)

	flush := func() {
		c, err := nft.Open(int(s.host.NS))
		if err != nil {
			t.Fatal(err)
		}
		c.FlushRuleset()
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	s.until("the tables are back", func() bool { return s.held() == len(families) })
	s.check("web", "db", 80, false)

	s.stop()
	s.check("web", "db", 80, false) // nobody is there, and the tables stand
	s.mu.Lock()
	s.world.Pods = pods
	s.mu.Unlock()
	s.run()
	s.settle()
	s.check("web", "db", 80, false)
	s.check("job", "db", 80, true)
	s.stop()
	s.mu.Lock()
	s.world.Policies = nil
	s.mu.Unlock()
	s.run() // the last policy went while nobody was there
	s.until("the tables are gone", func() bool { return s.held() == 0 })
}

// chains are those of the IPv4 table with the numbers of their rules, which are never
// used again.
func (s *stage) chains() (out []string) {
	c, err := nft.Open(int(s.host.NS))
	if err != nil {
		s.t.Fatal(err)
	}
	all, err := c.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, chain := range all {
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, r := range rules {
			out = append(out, fmt.Sprint(chain.Name, r.Handle))
		}
	}
	return out
}
