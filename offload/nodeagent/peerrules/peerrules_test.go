package peerrules

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
	table "rivulet/fabric/reach"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// Whatever a peer tells, no more addresses count than pods of this cluster may have there,
// and only those that are the peer's to give; what statuses show comes first.
func TestWhatCountsAsOurs(t *testing.T) {
	prefix := netip.MustParsePrefix("10.70.0.0/16")
	control := netip.MustParseAddr("10.70.255.254")
	address := rapid.Custom(func(t *rapid.T) netip.Addr {
		return netip.AddrFrom4([4]byte{10, rapid.SampledFrom([]byte{42, 70, 70, 71}).Draw(t, "b"), rapid.SampledFrom([]byte{0, 255}).Draw(t, "c"), rapid.SampledFrom([]byte{1, 2, 3, 4, 5, 6, 7, 254}).Draw(t, "d")})
	})
	some := rapid.SliceOfN(address, 0, 12)
	rapid.Check(t, func(t *rapid.T) {
		p := Peer{Prefix: prefix, Control: control, Pods: rapid.IntRange(0, 4).Draw(t, "pods"), Known: rapid.Bool().Draw(t, "known"),
			Seen: some.Draw(t, "seen"), Advertised: some.Draw(t, "told")}
		before := some.Draw(t, "before")
		got := p.ours(before)
		most := perPod * p.Pods
		if !p.Known {
			most = max(most, len(before))
		}
		if len(got) > most || !slices.IsSortedFunc(got, netip.Addr.Compare) {
			t.Fatalf("%v are ours, at most %d may be", got, most)
		}
		all := append(append(slices.Clone(p.Seen), p.Advertised...), before...)
		for _, a := range got {
			if !prefix.Contains(a) || a == control || !slices.Contains(all, a) || p.Known && !slices.Contains(append(slices.Clone(p.Seen), p.Advertised...), a) {
				t.Fatalf("%s is ours, of %+v and %v before", a, p, before)
			}
		}
		mine := map[netip.Addr]bool{}
		for _, a := range p.Seen {
			if prefix.Contains(a) && a != control {
				mine[a] = true
			}
		}
		for a := range mine {
			if len(mine) <= most && !slices.Contains(got, a) {
				t.Fatalf("%s has a status and is not ours", a)
			}
		}
	})
}

// A device with a pod of its own and one of alice's, before and after what it knows.
type stage struct {
	t          *testing.T
	host, peer testns.Room
	results    string

	mu      sync.Mutex
	peers   []Peer
	open    []table.Grant
	tenants map[peer.ID][]netip.Addr
	others  map[peer.ID][]netip.Addr // tenants on other nodes
	err     error
	passes  int
	poke    chan struct{}
}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, host: testns.New(t), peer: testns.New(t), results: filepath.Join(t.TempDir(), "cni", "results"), poke: make(chan struct{}, 1)}
	s.host.Router()
	s.host.Bridge("cni0", "10.42.0.1/24")
	if err := os.MkdirAll(s.results, 0o700); err != nil {
		t.Fatal(err)
	}
	for i, ns := range []string{"default", "lab-alice"} {
		r, addr := testns.New(t), fmt.Sprintf("10.42.0.%d", 5+i)
		s.host.Plug("cni0", fmt.Sprintf("veth%d", i), r, addr+"/24", "10.42.0.1")
		r.Listen("0.0.0.0:80")
		s.result(ns, fmt.Sprintf("veth%d", i), addr)
	}
	s.host.Cable("riv0", s.peer, "eth0")
	s.host.Do(func() error { return testns.Give("riv0", "10.70.255.1/16") })
	s.peer.Do(func() error {
		return errors.Join(testns.Give("eth0", "10.70.0.5/16"), testns.Give("eth0", "10.70.0.6/16"), testns.Route("10.42.0.0/16", "10.70.255.1"))
	})
	return s
}

func (s *stage) result(ns, veth, addr string) {
	text := fmt.Sprintf(`{"kind":"cniCacheV1","cniArgs":[["K8S_POD_NAMESPACE",%q]],"result":{"interfaces":[{"name":%q},{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"%s/24"}]}}`, ns, veth, addr)
	if err := os.WriteFile(filepath.Join(s.results, "cbr0-"+veth), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) Twins() map[string]peer.ID { return map[string]peer.ID{"lab-alice": "alice"} }
func (s *stage) Peers() []Peer             { s.mu.Lock(); defer s.mu.Unlock(); return s.peers }
func (s *stage) Open() []table.Grant       { s.mu.Lock(); defer s.mu.Unlock(); return s.open }
func (s *stage) Whole() []netip.Prefix     { return nil }
func (s *stage) Nodes() []netip.Prefix     { return nil }

func (s *stage) Others() map[peer.ID][]netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.others
}

func (s *stage) SetOurs(map[peer.ID][]netip.Addr, map[peer.ID]map[peer.ID]netip.Prefix) map[netip.Addr]netip.Addr {
	return nil
}

func (s *stage) SetTenants(of map[peer.ID][]netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tenants = of
}

func (s *stage) Report(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.passes = err, s.passes+1
}

func (s *stage) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	cfg := Config{Interface: "riv0", Results: s.results, Changed: s.poke, Cluster: s,
		Log: slog.New(slog.DiscardHandler), exists: func(string) bool { return true }, Guard: nft.NewGuard(int(s.host.NS), slog.New(slog.DiscardHandler)),
	}
	go func() { done <- Run(ctx, cfg) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			s.t.Error(err)
		}
	})
}

// say changes what is known and waits until it is in force.
func (s *stage) say(peers []Peer, open []table.Grant) {
	s.t.Helper()
	s.mu.Lock()
	s.peers, s.open = peers, open
	s.mu.Unlock()
	s.settle()
}

func (s *stage) settle() {
	s.t.Helper()
	s.mu.Lock()
	from := s.passes
	s.mu.Unlock()
	var err error
	await.True(s.t, 10*time.Second, "a pass", func() bool {
		select {
		case s.poke <- struct{}{}:
		default:
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		err = s.err
		return s.passes >= from+2 // one that began after
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// The first pod that a device ever has is known as soon as others: the folder of results
// comes with it.
func TestTheFirstPodIsSeen(t *testing.T) {
	s := newStage(t)
	if err := os.RemoveAll(s.results); err != nil {
		t.Fatal(err)
	}
	stop := s.run()
	defer stop()
	s.settle()
	if err := os.MkdirAll(s.results, 0o700); err != nil { // as libcni does
		t.Fatal(err)
	}
	s.result("lab-alice", "veth1", "10.42.0.6")
	await.True(t, 5*time.Second, "it is seen", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.tenants["alice"]) == 1
	})
}

func TestRunKeepsTheTable(t *testing.T) {
	s := newStage(t)
	s.host.Do(func() error { return table.Ensure("riv0", netip.Addr{}) })
	prefix, ours := netip.MustParsePrefix("10.70.0.0/16"), netip.MustParseAddr("10.70.0.5")
	try := func(what string, want map[[2]string]bool) {
		t.Helper()
		for pair, reached := range want {
			if got := s.peer.Reaches(pair[0], pair[1]+":80"); got != reached {
				t.Errorf("%s: %s to %s: %v, want %v", what, pair[0], pair[1], got, reached)
			}
		}
	}
	const own, tenant, a, b = "10.42.0.5", "10.42.0.6", "10.70.0.5", "10.70.0.6"
	stop := s.run()
	defer func() { stop() }()
	there := Peer{ID: "alice", Prefix: prefix, Pods: 1, Known: true, Advertised: []netip.Addr{ours}}
	s.say([]Peer{there}, nil)
	try("a pod of ours at the peer", map[[2]string]bool{{a, own}: true, {b, own}: false, {b, tenant}: true})
	s.mu.Lock()
	if got := s.tenants["alice"]; len(got) != 1 || got[0].String() != tenant {
		t.Errorf("alice is told of %v", got)
	}
	s.mu.Unlock()

	// So is a pod of hers on another node, as long as it is there.
	say := func(others map[peer.ID][]netip.Addr) {
		t.Helper()
		s.mu.Lock()
		s.others = others
		s.mu.Unlock()
		s.settle()
	}
	say(map[peer.ID][]netip.Addr{"alice": {netip.MustParseAddr(own)}})
	try("a tenant on another node", map[[2]string]bool{{b, own}: true})
	s.mu.Lock()
	if got := fmt.Sprint(s.tenants["alice"]); got != "["+own+" "+tenant+"]" {
		t.Errorf("alice is told of %s", got)
	}
	s.mu.Unlock()
	say(nil)
	try("it has gone", map[[2]string]bool{{b, own}: false})

	// A new tenant is let in by its CNI result alone.
	s.result("lab-alice", "veth0", own)
	s.settle()
	try("a new tenant", map[[2]string]bool{{b, own}: true})
	s.result("default", "veth0", own)

	// After a restart what stood goes on until the peer is known again.
	stop()
	s.peers = []Peer{{ID: "alice", Prefix: prefix}}
	stop = s.run()
	s.settle()
	try("restarted", map[[2]string]bool{{a, own}: true, {b, own}: false})
	s.say([]Peer{{ID: "alice", Prefix: prefix, Known: true}}, nil)
	try("nothing is there any more", map[[2]string]bool{{a, own}: false})
	s.say([]Peer{{ID: "alice", Prefix: prefix, Known: true, Advertised: []netip.Addr{ours}}}, nil)
	try("told of a pod that was never sent", map[[2]string]bool{{a, own}: false})
	s.say(nil, []table.Grant{{From: prefix, Pods: []netip.Addr{netip.MustParseAddr(own)}}})
	try("opened", map[[2]string]bool{{b, own}: true})
	s.say(nil, nil)
	try("closed", map[[2]string]bool{{b, own}: false, {a, own}: false})
}
