package dnssrv_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/discoverytest"
	"rivulet/fabric/discovery/dnssrv"
	"rivulet/test/harness/await"
)

// zone is a DNS server on loopback with SRV and address records.
type zone struct {
	t      *testing.T
	mu     sync.Mutex
	srv    []*dns.SRV
	addrs  map[string][]netip.Addr
	broken bool
	addr   string
	asked  int
}

const site = "_rivulet._tcp.lab.example"

func newZone(t *testing.T) *zone {
	z := &zone{t: t, addrs: map[string][]netip.Addr{}}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	z.addr = pc.LocalAddr().String()
	server := &dns.Server{PacketConn: pc, Handler: z}
	go server.ActivateAndServe()
	t.Cleanup(func() { server.Shutdown() })
	return z
}

func (z *zone) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked++
	m := new(dns.Msg)
	m.SetReply(r)
	m.Compress = true
	q := r.Question[0]
	name := strings.TrimSuffix(strings.ToLower(q.Name), ".")
	header := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 1}
	known := name == site && len(z.srv) > 0 || len(z.addrs[name]) > 0
	switch {
	case z.broken:
		m.Rcode = dns.RcodeServerFailure
	case !known:
		m.Rcode = dns.RcodeNameError
	case q.Qtype == dns.TypeSRV:
		for _, s := range z.srv {
			s.Hdr = header
			m.Answer = append(m.Answer, s)
		}
	default:
		for _, a := range z.addrs[name] {
			if q.Qtype == dns.TypeA && a.Is4() {
				m.Answer = append(m.Answer, &dns.A{Hdr: header, A: a.AsSlice()})
			} else if q.Qtype == dns.TypeAAAA && a.Is6() {
				m.Answer = append(m.Answer, &dns.AAAA{Hdr: header, AAAA: a.AsSlice()})
			}
		}
	}
	w.WriteMsg(m)
}

// put makes the host's records what is given.
func (z *zone) put(host string, port uint16, addrs ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.drop(host)
	z.srv = append(z.srv, &dns.SRV{Target: host + ".", Port: port})
	for _, a := range addrs {
		z.addrs[host] = append(z.addrs[host], netip.MustParseAddr(a))
	}
}

func (z *zone) remove(host string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.drop(host)
}

func (z *zone) drop(host string) {
	var left []*dns.SRV
	for _, s := range z.srv {
		if s.Target != host+"." {
			left = append(left, s)
		}
	}
	z.srv = left
	delete(z.addrs, host)
}

func (z *zone) setBroken(b bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.broken = b
}

func (z *zone) questions() int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.asked
}

// watch runs a source that asks the zone.
func (z *zone) watch(every time.Duration, changed func() (<-chan struct{}, func()), queries ...dnssrv.Query) (*dnssrv.Source, chan discovery.Event) {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", z.addr)
	}}
	s := dnssrv.New(dnssrv.Config{
		Resolver: resolver, Timing: dnssrv.Timing{Every: every, Timeout: 5 * time.Second}, Changed: changed,
		Log: slog.New(slog.NewTextHandler(z.t.Output(), nil)),
	}, queries...)
	events, done := make(chan discovery.Event, 64), make(chan struct{})
	go func() {
		defer close(done)
		s.Watch(z.t.Context(), func(e discovery.Event) { events <- e })
	}()
	z.t.Cleanup(func() { <-done })
	return s, events
}

func TestContract(t *testing.T) {
	traits := discoverytest.Traits{Prompt: 5 * time.Second, Addrs: [2]string{"192.0.2.1", "2001:db8::2"}}
	t.Run("SRV", func(t *testing.T) {
		discoverytest.Run(t, traits, func(t *testing.T) discoverytest.Stage {
			z := newZone(t)
			_, events := z.watch(100*time.Millisecond, nil, dnssrv.Query{Service: true, Name: site})
			return &stage{z, events}
		})
	})
	traits.NoPorts = true // the user writes it, the DNS does not
	traits.NoSecond = true
	t.Run("host", func(t *testing.T) {
		discoverytest.Run(t, traits, func(t *testing.T) discoverytest.Stage {
			z := newZone(t)
			_, events := z.watch(100*time.Millisecond, nil, dnssrv.Query{Name: "one.lab.example", Port: 7442})
			return &stage{z, events}
		})
	})
}

type stage struct {
	*zone
	events chan discovery.Event
}

func (s *stage) Events() <-chan discovery.Event { return s.events }
func (s *stage) Goodbye()                       { s.remove("one.lab.example") }
func (s *stage) Die()                           { s.remove("one.lab.example") }
func (s *stage) Announce(at netip.AddrPort, _ string) {
	s.put("one.lab.example", at.Port(), at.Addr().String())
}
func (s *stage) Second(at netip.AddrPort, _ string) {
	s.put("two.lab.example", at.Port(), at.Addr().String())
}

func next(t *testing.T, events chan discovery.Event) discovery.Event {
	t.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was told within 10 s")
		return discovery.Event{}
	}
}

// A DNS that does not answer says nothing of the clusters: they stay, and the user
// is told why. When it is back, so is the truth.
func TestDNSOutage(t *testing.T) {
	z := newZone(t)
	z.put("one.lab.example", 7442, "192.0.2.1")
	s, events := z.watch(50*time.Millisecond, nil, dnssrv.Query{Service: true, Name: site})
	if e := next(t, events); e.Kind != discovery.Added {
		t.Fatalf("told %v", e)
	}
	z.setBroken(true)
	await.True(t, 10*time.Second, "the outage shows", func() bool { return len(s.Problems()) > 0 })
	if why := s.Problems()["srv:"+site]; !strings.Contains(why, "; look at the DNS servers") {
		t.Errorf("problem %q", why)
	}
	z.setBroken(false)
	z.put("one.lab.example", 7442, "192.0.2.9")
	e := next(t, events)
	if e.Kind != discovery.Changed || e.Entry.Addrs[0].Addr().String() != "192.0.2.9" {
		t.Errorf("after the outage: %v", e)
	}
	z.remove("one.lab.example")
	if e := next(t, events); e.Kind != discovery.Removed {
		t.Errorf("told %v", e)
	}
	if why := s.Problems()["srv:"+site]; !strings.Contains(why, "has no SRV records") {
		t.Errorf("problem %q", why)
	}
}

// A zone can list more than one device will remember.
func TestBounds(t *testing.T) {
	z := newZone(t)
	for n := range 25 { // what fits into a packet without TCP
		z.put(fmt.Sprintf("h%d.e", n), 7442, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6", "192.0.2.7", "192.0.2.8", "192.0.2.9")
	}
	_, events := z.watch(time.Minute, nil, dnssrv.Query{Service: true, Name: site})
	for range 25 {
		if e := next(t, events); len(e.Entry.Addrs) > 8 {
			t.Fatalf("%d addresses of one cluster", len(e.Entry.Addrs))
		}
	}
}

// Another list and another network are acted on at once.
func TestSetAndMove(t *testing.T) {
	z := newZone(t)
	moved := make(chan struct{}, 1)
	s, events := z.watch(time.Hour, func() (<-chan struct{}, func()) { return moved, func() {} })
	z.put("one.lab.example", 7442, "192.0.2.1")
	if n := z.questions(); n != 0 {
		t.Errorf("%d questions about no name", n)
	}
	s.Set(dnssrv.Query{Name: "one.lab.example", Port: 7000})
	if e := next(t, events); e.Kind != discovery.Added || e.Entry.Addrs[0].Port() != 7000 {
		t.Fatalf("told %v", e)
	}
	z.put("one.lab.example", 7442, "192.0.2.2")
	moved <- struct{}{}
	if e := next(t, events); e.Kind != discovery.Changed {
		t.Fatalf("told %v", e)
	}
	s.Set()
	if e := next(t, events); e.Kind != discovery.Removed {
		t.Fatalf("told %v", e)
	}
}
