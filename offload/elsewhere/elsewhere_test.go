package elsewhere

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/test/harness/await"
)

// A home and three clusters that are all peers of each other, without a network: alice has
// pods at b and c, mallory is a peer of them and nothing of alice's.
type site struct {
	t          *testing.T
	mu         sync.Mutex
	all        map[peer.ID]*Elsewhere
	servers    map[peer.ID]*httptest.Server
	tenants    map[[2]peer.ID][]netip.Addr // by where and whose
	apart      map[[2]peer.ID]bool         // no link
	old        map[peer.ID]bool            // does not know the routes
	unanswered int                         // questions to such a cluster
}

func id(letter string) peer.ID { return peer.ID(strings.Repeat(letter, 32)) }

var alice, b, c, mallory = id("a"), id("b"), id("c"), id("m")

var pods = netip.MustParsePrefix("10.42.0.0/16")

// seen is the prefix under which everybody sees a cluster.
func seen(who peer.ID) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, who[0], 0, 0}), 16)
}

func at(who peer.ID, host byte) netip.Addr {
	return netip.AddrFrom4([4]byte{10, who[0], 0, host})
}

func pod(host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 42, 0, host}) }

const from = "From"

type as struct {
	who peer.ID
	rt  http.RoundTripper
}

func (a as) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set(from, string(a.who))
	return a.rt.RoundTrip(r)
}

var everybody = []peer.ID{alice, b, c, mallory}

// member is one cluster as its Elsewhere sees it.
type member struct {
	*site
	who peer.ID
}

func (m member) Links() (links []peer.Link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range everybody {
		if other != m.who && !m.apart[[2]peer.ID{m.who, other}] && !m.apart[[2]peer.ID{other, m.who}] {
			links = append(links, peer.Link{ID: other, PeerCIDR: pods, PeerMappedCIDR: seen(other), Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, other[0], 255, 254}), 7442)})
		}
	}
	return links
}

// Changed never reports: the tests call Check.
func (m member) Changed() (<-chan struct{}, func()) { return nil, func() {} }

func (m member) Client(to peer.ID) (*http.Client, string, error) {
	return &http.Client{Transport: as{m.who, http.DefaultTransport}}, m.servers[to].URL, nil
}

func (m member) Lends(peer.ID) bool { return true }

func (m member) Tenants(whose peer.ID) []netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tenants[[2]peer.ID{m.who, whose}]
}

func newSite(t *testing.T) *site {
	s := &site{t: t, all: map[peer.ID]*Elsewhere{}, servers: map[peer.ID]*httptest.Server{}, tenants: map[[2]peer.ID][]netip.Addr{}, apart: map[[2]peer.ID]bool{}, old: map[peer.ID]bool{}}
	for _, who := range everybody {
		e := New(Config{
			Peers: member{s, who}, Provider: member{s, who},
			PeerID:  func(r *http.Request) (peer.ID, bool) { return peer.ID(r.Header.Get(from)), r.Header.Get(from) != "" },
			PodCIDR: pods, Log: slog.New(slog.DiscardHandler),
		})
		mux := http.NewServeMux()
		for pattern, h := range e.Routes() {
			mux.Handle(pattern, h)
		}
		s.all[who] = e
		s.servers[who] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			old := s.old[who]
			if old && r.Method == http.MethodPost {
				s.unanswered++
			}
			s.mu.Unlock()
			if old {
				http.NotFound(w, r)
				return
			}
			mux.ServeHTTP(w, r)
		}))
		t.Cleanup(s.servers[who].Close)
	}
	for _, e := range s.all {
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = e.Run(ctx) }()
		t.Cleanup(func() { stop(); <-done })
	}
	return s
}

// await waits until what is confirmed at a cluster of alice's pods is this.
func (s *site) await(where peer.ID, want ...netip.Addr) {
	s.t.Helper()
	await.NoError(s.t, s.t.Context(), 10*time.Second, fmt.Sprintf("at %s %v are alice's", where[:1], want), func() error {
		if got := s.all[where].Confirmed(alice); !slices.Equal(got, want) {
			return fmt.Errorf("%v are", got)
		}
		return nil
	})
}

func (s *site) run(where peer.ID, hosts ...byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []netip.Addr
	for _, h := range hosts {
		all = append(all, pod(h))
	}
	s.tenants[[2]peer.ID{where, alice}] = all
}

func TestBothHaveToSayIt(t *testing.T) {
	s := newSite(t)
	s.run(b, 5)
	s.run(c, 6, 7)
	begun := time.Now()
	s.all[alice].SetOurs(map[peer.ID][]netip.Addr{b: {at(b, 5)}, c: {at(c, 6), at(c, 7)}}, nil)
	s.await(b, at(c, 6), at(c, 7))
	s.await(c, at(b, 5))
	t.Logf("known on both sides after %s", time.Since(begun))
	// With it each knows how home calls the pods of the other, and of nobody else.
	if got := s.all[b].Under(alice).Prefixes; len(got) != 1 || got[c] != seen(c) {
		t.Errorf("b is told that alice knows peers' pods under %v", got)
	}
	if got := s.all[mallory].Under(alice).Prefixes; len(got) != 0 {
		t.Errorf("mallory is told that alice knows peers' pods under %v", got)
	}

	// What home names and the peer does not have does not count: neither another pod of the
	// peer's, nor its own end of the tunnel, nor one that is not named any more.
	s.all[alice].SetOurs(map[peer.ID][]netip.Addr{b: {at(b, 5)}, c: {at(c, 6), at(c, 9), netip.AddrFrom4([4]byte{10, c[0], 255, 254})}}, nil)
	s.await(b, at(c, 6))
	await.True(t, 10*time.Second, "c has answered about these", func() bool {
		s.all[b].mu.Lock()
		defer s.all[b].mu.Unlock()
		return len(s.all[b].confirmed[pair{alice, c}].addrs) == 1
	})
	// Nor, from then on, what home does not name any more, though the peer cannot be asked.
	s.silent(c, true)
	s.all[alice].SetOurs(map[peer.ID][]netip.Addr{b: {at(b, 5)}, c: {at(c, 7)}}, nil)
	s.await(b)
	s.silent(c, false)
	s.await(b, at(c, 7))
	// A peer that home has no pods at is not believed, and nobody answers it.
	if got := s.all[mallory].Confirmed(alice); len(got) != 0 {
		t.Errorf("mallory takes %v for alice's", got)
	}
	if got := s.probe(mallory, c, 6); len(got) != 0 {
		t.Errorf("mallory is told that %v are alice's at c", got)
	}
	if got := s.probe(b, c, 6, 8); !slices.Equal(got, []netip.Addr{pod(6)}) {
		t.Errorf("b is told that %v are alice's at c", got)
	}

	// A link that ends takes all of it away at once.
	s.mu.Lock()
	s.apart[[2]peer.ID{b, c}] = true
	s.mu.Unlock()
	if got := s.all[b].Confirmed(alice); len(got) != 0 {
		t.Errorf("without a link %v are alice's", got)
	}
	s.mu.Lock()
	delete(s.apart, [2]peer.ID{b, c})
	s.mu.Unlock()
	s.all[alice].SetOurs(map[peer.ID][]netip.Addr{b: {at(b, 5)}}, nil)
	s.await(b)
}

// silent has a cluster answer nothing, or answer again.
// Providers that are no peers of each other get addresses by which home relays, both ways, and as soon as they are peers
// none; those of the pods stay, so that connections do.
func TestThroughHome(t *testing.T) {
	s := newSite(t)
	s.mu.Lock()
	s.apart[[2]peer.ID{b, c}] = true
	s.mu.Unlock()
	s.run(b, 5)
	s.run(c, 6)
	ours := map[peer.ID][]netip.Addr{b: {at(b, 5)}, c: {at(c, 6)}}
	if through := s.all[alice].SetOurs(ours, map[peer.ID]map[peer.ID]netip.Prefix{b: {}}); len(through) != 2 {
		t.Errorf("through home: %v", through)
	}
	if by, ok := s.all[alice].Through(b, c, at(c, 6)); ok {
		t.Errorf("it is not known which peers c has, and home relays by %s", by)
	}
	through := s.all[alice].SetOurs(ours, map[peer.ID]map[peer.ID]netip.Prefix{b: {}, c: {b: seen(b)}}) // one is enough
	relayed := func(where peer.ID, want map[netip.Addr]netip.Addr) {
		t.Helper()
		await.NoError(t, t.Context(), 10*time.Second, "relayed to "+string(where[:1]), func() error {
			if got := s.all[where].Under(alice).Relayed; !maps.Equal(got, want) {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
	}
	relayed(b, map[netip.Addr]netip.Addr{at(c, 6): through[at(c, 6)]})
	relayed(c, map[netip.Addr]netip.Addr{at(b, 5): through[at(b, 5)]})
	if by, ok := s.all[alice].Through(c, b, at(b, 5)); !ok || by != through[at(b, 5)] || fmt.Sprint(s.all[alice].Relayed()) != fmt.Sprint(map[peer.ID][]peer.ID{b: {c}, c: {b}}) {
		t.Errorf("%s %v, %v", by, ok, s.all[alice].Relayed())
	}
	if got := s.all[mallory].Under(alice).Relayed; len(got) > 0 {
		t.Errorf("mallory is told %v", got)
	}
	if again := s.all[alice].SetOurs(ours, map[peer.ID]map[peer.ID]netip.Prefix{b: {c: seen(c)}, c: {b: seen(b)}}); !maps.Equal(again, through) {
		t.Errorf("they are peers, and connections break: %v, now %v", through, again)
	}
	relayed(b, nil)
	relayed(c, nil)
	if through := s.all[alice].SetOurs(map[peer.ID][]netip.Addr{b: ours[b]}, map[peer.ID]map[peer.ID]netip.Prefix{b: {}}); len(through) > 0 {
		t.Errorf("pods at one provider alone: %v", through)
	}
}

// Each pod has an address of its own in the block, and keeps it as long as it is there.
func TestAssign(t *testing.T) {
	first, n := block(pods)
	if a := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, first))); a != netip.MustParseAddr("10.42.248.0") || n != 7*256 {
		t.Fatalf("%s, %d", a, n)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint32Range(1, 40).Draw(t, "n")
		var had map[netip.Addr]netip.Addr
		for range 4 {
			some := rapid.SliceOfNDistinct(rapid.Byte(), 0, 50, func(b byte) byte { return b }).Draw(t, "pods")
			var all []netip.Addr
			for _, b := range some {
				all = append(all, at(c, b))
			}
			got, used := assign(first, n, had, all), map[netip.Addr]bool{}
			if len(got) != min(len(all), int(n)) {
				t.Fatalf("%d of %d pods have an address of %d", len(got), len(all), n)
			}
			for pod, a := range got {
				at := a.As4()
				if i := binary.BigEndian.Uint32(at[:]); used[a] || i < first || i >= first+n || !slices.Contains(all, pod) {
					t.Fatalf("%s has %s", pod, a)
				}
				if before, ok := had[pod]; ok && before != a {
					t.Fatalf("%s had %s, and has %s", pod, before, a)
				}
				used[a] = true
			}
			had = got
		}
	})
}

func (s *site) silent(who peer.ID, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old[who] = yes
}

// probe asks as somebody.
func (s *site) probe(who, where peer.ID, hosts ...byte) []netip.Addr {
	s.t.Helper()
	q := question{}
	for _, h := range hosts {
		q.Addresses = append(q.Addresses, pod(h))
	}
	var out question
	client := &http.Client{Transport: as{who, http.DefaultTransport}}
	if err := rpc.Call(s.t.Context(), client, http.MethodPost, s.servers[where].URL+"/v1/elsewhere/"+string(alice), q, &out); err != nil {
		s.t.Fatal(err)
	}
	return out.Addresses
}

// A peer of an earlier version confirms nothing, and is asked again when it has been upgraded.
func TestAnOlderPeerConfirmsNothing(t *testing.T) {
	s := newSite(t)
	s.silent(c, true)
	s.run(b, 5)
	s.run(c, 6)
	s.all[alice].SetOurs(map[peer.ID][]netip.Addr{b: {at(b, 5)}, c: {at(c, 6)}}, nil)
	await.True(t, 10*time.Second, "c is asked twice: the first answer has been looked at", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.unanswered >= 2
	})
	if got := s.all[b].Confirmed(alice); len(got) != 0 {
		t.Fatalf("%v are alice's, and nobody has said so", got)
	}
	s.silent(c, false)
	s.await(b, at(c, 6))
}

// Strangers, floods and bodies that are too large are refused.
func TestRefusals(t *testing.T) {
	s := newSite(t)
	many := Named{}
	for i := range most + 1 {
		many[b] = append(many[b], netip.AddrFrom4([4]byte{10, 42, byte(i >> 8), byte(i)}))
	}
	ask := func(who peer.ID, method, path string, body any) int {
		raw, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), method, s.servers[c].URL+path, strings.NewReader(string(raw)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: as{who, http.DefaultTransport}}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if code := ask(id("x"), http.MethodPut, "/v1/elsewhere", Named{}); code != http.StatusUnauthorized {
		t.Errorf("a stranger: %d", code)
	}
	if code := ask(mallory, http.MethodPut, "/v1/elsewhere", many); code != http.StatusBadRequest {
		t.Errorf("too many: %d", code)
	}
	if code := ask(mallory, http.MethodPut, "/v1/elsewhere", Named{"nobody": {pod(1)}}); code != http.StatusBadRequest {
		t.Errorf("no cluster: %d", code)
	}
	refused := false
	for range 10 * requestBurst {
		refused = refused || ask(mallory, http.MethodPost, "/v1/elsewhere/"+string(alice), question{}) == http.StatusTooManyRequests
	}
	if !refused {
		t.Error("a flood of questions is answered")
	}
}
