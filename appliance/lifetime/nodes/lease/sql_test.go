package lease

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

	"rivulet/appliance/config/sqlserver"
	"rivulet/test/harness/await"
	"rivulet/test/harness/sqltest"
)

// server is a device that takes part, and what it has seen.
type server struct {
	node string
	stop func()

	mu        sync.Mutex
	addresses []netip.AddrPort
	sent      []time.Duration // of each renewal
	others    []string
	requests  []string
	err       error
}

func run(t *testing.T, address, node string, addresses ...string) *server {
	t.Helper()
	s := &server{node: node, addresses: addrs(addresses...)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	locked := func(f func()) { s.mu.Lock(); defer s.mu.Unlock(); f() }
	go func() {
		ended <- Run(ctx, Config{
			Address: address, Node: node, Log: slog.New(slog.DiscardHandler),
			Addresses: func() (out []netip.AddrPort) { locked(func() { out = s.addresses }); return out },
			Lead:      func() bool { return true },
			Held:      func(until time.Duration) { locked(func() { s.sent = append(s.sent, until-Life) }) },
			Other:     func(h Holder) { locked(func() { s.others = append(s.others, fmt.Sprint(h)) }) },
			Requests:  func(all []Request) { locked(func() { s.requests = append(s.requests, fmt.Sprint(all)) }) },
			Report:    func(err error) { locked(func() { s.err = err }) },
		})
	}()
	return s
}

func addrs(texts ...string) (out []netip.AddrPort) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddrPort(text))
	}
	return out
}

// renewed waits for n more renewals, and returns when the last one was sent.
func (s *server) renewed(t *testing.T, n int) time.Duration {
	t.Helper()
	s.mu.Lock()
	want := len(s.sent) + n
	s.mu.Unlock()
	await.True(t, 20*time.Second, fmt.Sprintf("%s renews %d times", s.node, n), func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.sent) >= want })
	return s.last()
}

func (s *server) last() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[len(s.sent)-1]
}

// sees waits until the last one of a list is want.
func (s *server) sees(t *testing.T, list *[]string, want string) {
	t.Helper()
	await.Empty(t, 20*time.Second, s.node+" sees "+want, func(context.Context) string {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(*list); n == 0 || (*list)[n-1] != want {
			return fmt.Sprint(*list, s.err)
		}
		return ""
	})
}

func (s *server) reports(t *testing.T, want string) {
	t.Helper()
	await.Empty(t, 20*time.Second, s.node+" reports "+want, func(context.Context) string {
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := fmt.Sprint(s.err); !strings.Contains(got, want) {
			return got
		}
		return ""
	})
}

func between(t *testing.T, what string, d, low, high time.Duration) {
	t.Helper()
	t.Logf("%s: %s", what, d.Round(time.Millisecond))
	if d < low || d > high {
		t.Errorf("%s: %s, want %s to %s", what, d, low, high)
	}
}

func TestSQL(t *testing.T) {
	for _, name := range sqltest.Servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, address := t.Context(), sqltest.Start(t, name)
			no := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			const gone = "was replaced, or its tables rivulet_gateway and rivulet_return were deleted; restore the database from its own backup"
			a := run(t, address, "a")
			a.reports(t, gone)
			a.stop()
			if err := Release(ctx, address, "a"); err == nil || !strings.Contains(err.Error(), gone) {
				t.Errorf("released without a table: %v", err)
			}

			for range 2 {
				no(Begin(ctx, address, "a", addrs("192.168.1.5:7442")))
			}
			if err := Begin(ctx, address, "b", nil); err == nil || !strings.Contains(err.Error(), "a is the gateway of this cluster in ") {
				t.Errorf("two begin: %v", err)
			}
			no(with(ctx, address, func(ctx context.Context, db *database) error {
				for _, old := range []row{{"a", 2, ""}, {"a", 0, ""}, {"b", 1, ""}, {"", 1, ""}} {
					if ok, err := db.swap(ctx, old, "b", ""); ok || err != nil {
						t.Errorf("a row that is not %v is changed: %v, %v", old, ok, err)
					}
				}
				return nil
			}))
			a = run(t, address, "a", "192.168.1.5:7442", "[fe80::1%eth0]:7442")
			begun := Now()
			between(t, "from the start to a renewal", a.renewed(t, 1)-begun, 0, time.Second)
			b := run(t, address, "b", "192.168.1.6:7442")
			b.sees(t, &b.others, "{a [192.168.1.5:7442 [fe80::1]:7442]}")
			a.mu.Lock()
			a.addresses = addrs("192.168.1.7:7442")
			a.mu.Unlock()
			b.sees(t, &b.others, "{a [192.168.1.7:7442]}")
			between(t, "from one renewal to the next", -a.last()+a.renewed(t, 1), Every, Every+time.Second)
			a.stop()
			between(t, "from the last renewal to that of another device", b.renewed(t, 1)-a.last(), Life+Margin, 10*time.Second)

			a = run(t, address, "a", "192.168.1.5:7442")
			a.sees(t, &a.others, "{b [192.168.1.6:7442]}")
			b.sees(t, &b.requests, "[]")
			for _, device := range []string{"old", "new", "new"} {
				no(Return(ctx, address, Request{device, "a"}))
			}
			no(Return(ctx, address, Request{"third", "c"}))
			b.sees(t, &b.requests, "[{new a} {third c}]")
			no(Return(ctx, address, Request{"new", "d"}))
			b.sees(t, &b.requests, "[{new d} {third c}]")
			no(Answer(ctx, address, "new"))
			no(Answer(ctx, address, "third"))
			b.sees(t, &b.requests, "[]")

			b.stop()
			no(Release(ctx, address, "a")) // which has it not
			no(Release(ctx, address, "b"))
			begun = Now()
			between(t, "from a release to a renewal", a.renewed(t, 1)-begun, 0, Every+time.Second)
			a.reports(t, "nil")
			a.stop()

			// A connection that is cut costs one timeout, and a database that is cut gives no deadline.
			p := newProxy(t, address)
			a = run(t, p.address, "a")
			a.renewed(t, 2)
			for range 2 {
				last := a.last()
				p.silence(false)
				between(t, "from one renewal to the next when the connection is cut in between", a.renewed(t, 1)-last, Every, Every+timeout+time.Second)
			}
			b = run(t, address, "b")
			b.sees(t, &b.others, "{a []}")
			p.silence(true)
			a.reports(t, "it does not answer; start the SQL server")
			last := a.last()
			between(t, "from the last renewal to that of another device when the network is cut", b.renewed(t, 1)-last, Life+Margin, 10*time.Second)
			if a.last() != last {
				t.Errorf("a deadline of %s without an answer, after that of %s", a.last(), last)
			}
			p.heal()
			a.sees(t, &a.others, "{b []}")
		})
	}
}

func TestRunWithoutAnAddress(t *testing.T) {
	if err := Run(t.Context(), Config{Address: "CANARY"}); err == nil || strings.Contains(err.Error(), "CANARY") {
		t.Error(err)
	}
}

// proxy is a network to a database that loses what is sent.
type proxy struct {
	address string

	mu     sync.Mutex
	silent bool           // for new connections
	links  map[*bool]bool // of each connection, whether it is silent
}

func newProxy(t *testing.T, address string) *proxy {
	t.Helper()
	at, err := sqlserver.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := &proxy{address: strings.Replace(address, at.Address, l.Addr().String(), 1), links: map[*bool]bool{}}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", at.Address)
			if err != nil {
				client.Close()
				continue
			}
			link := new(bool)
			p.mu.Lock()
			p.links[link] = p.silent
			p.mu.Unlock()
			go p.forward(client, server, link)
			go p.forward(server, client, link)
		}
	}()
	return p
}

func (p *proxy) forward(from, to net.Conn, link *bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		silent := p.links[link]
		p.mu.Unlock()
		if !silent && n > 0 {
			_, _ = to.Write(buf[:n])
		}
		if err != nil {
			if !silent {
				to.Close() // a cut network does not show the end
			}
			return
		}
	}
}

// silence loses what the connections of now send, and what new ones do if all is set.
func (p *proxy) silence(all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = all
	for link := range p.links {
		p.links[link] = true
	}
}

func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = false
}
