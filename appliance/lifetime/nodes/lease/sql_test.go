package lease

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"rivulet/appliance/config/sqlserver"
	"rivulet/fabric/changes"
	"rivulet/test/harness/await"
	"rivulet/test/harness/sqltest"
)

// server is a device that takes part, and what it has seen.
type server struct {
	node string
	stop func()

	mu     sync.Mutex
	sent   []time.Duration // of each renewal
	others []string
	err    error
}

func run(t *testing.T, address, node, note string) *server {
	t.Helper()
	s := &server{node: node}
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
			Note:   func() string { return note },
			Lead:   func(h Holder) bool { return h.Node == node || h.Note != "changed" },
			Held:   func(until time.Duration) { locked(func() { s.sent = append(s.sent, until-Life) }) },
			Other:  func(h Holder) { locked(func() { s.others = append(s.others, fmt.Sprint(h)) }) },
			Report: func(err error) { locked(func() { s.err = err }) },
		})
	}()
	return s
}

// renewed waits for n more renewals, and returns when the last one was sent.
func (s *server) renewed(t *testing.T, n int) time.Duration {
	t.Helper()
	s.mu.Lock()
	want := len(s.sent) + n
	s.mu.Unlock()
	await.True(t, time.Minute, fmt.Sprintf("%s renews %d times", s.node, n), func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.sent) >= want })
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
	await.Empty(t, time.Minute, s.node+" sees "+want, func(context.Context) string {
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
	await.Empty(t, time.Minute, s.node+" reports "+want, func(context.Context) string {
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := fmt.Sprint(s.err); !strings.Contains(got, want) {
			return got
		}
		return ""
	})
}

// slow is what a machine that has much else to do may add.
const slow = 10 * time.Second

func between(t *testing.T, what string, d, low, high time.Duration) {
	t.Helper()
	t.Logf("%s: %s", what, d.Round(time.Millisecond))
	if d < low || d > high {
		t.Errorf("%s: %s, want %s to %s", what, d, low, high)
	}
}

func TestSQL(t *testing.T) {
	t.Parallel()
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
			const gone = "was replaced, or its table rivulet_gateway was deleted; restore the database from its own backup"
			a := run(t, address, "a", "")
			a.reports(t, gone)
			a.stop()
			if err := Release(ctx, address, "a"); err == nil || !strings.Contains(err.Error(), gone) {
				t.Errorf("released without a table: %v", err)
			}

			for range 2 {
				no(Begin(ctx, address, "a", "one"))
			}
			if err := Begin(ctx, address, "b", ""); err == nil || !strings.Contains(err.Error(), "a is the gateway of this cluster in ") {
				t.Errorf("two begin: %v", err)
			}
			no(with(ctx, address, func(ctx context.Context, db *database) error {
				for _, old := range []row{{holder("a"), 2, ""}, {holder("a"), 0, ""}, {"a", 1, ""}, {holder("b"), 1, ""}, {"", 1, ""}} {
					if ok, err := db.swap(ctx, old, "b", ""); ok || err != nil {
						t.Errorf("a row that is not %v is changed: %v, %v", old, ok, err)
					}
				}
				return nil
			}))
			a = run(t, address, "a", "two")
			begun := changes.BootTime()
			between(t, "from the start to a renewal", a.renewed(t, 1)-begun, 0, slow)
			b := run(t, address, "b", "three")
			b.sees(t, &b.others, "{a two}")
			between(t, "from one renewal to the next", -a.last()+a.renewed(t, 1), Every, Every+slow)
			a.stop()
			between(t, "from the last renewal to that of another device", b.renewed(t, 1)-a.last(), Life+Margin, Life+Margin+slow)

			a = run(t, address, "a", "two")
			a.sees(t, &a.others, "{b three}")

			b.stop()
			no(Release(ctx, address, "a")) // which has it not
			no(Release(ctx, address, "b"))
			no(with(ctx, address, func(ctx context.Context, db *database) error {
				if r, err := db.read(ctx); err != nil || r.note != "three" && r.note != "two" {
					t.Errorf("after a release the row is %v, %v", r, err)
				}
				return nil
			}))
			begun = changes.BootTime()
			between(t, "from a release to a renewal", a.renewed(t, 1)-begun, 0, Every+slow)
			a.reports(t, "nil")
			a.stop()

			// What the last one has written decides whether another one may take it.
			a = run(t, address, "a", "changed")
			a.renewed(t, 1)
			a.stop()
			b = run(t, address, "b", "")
			await.True(t, time.Minute, "the time has passed", func() bool { return changes.BootTime() > a.last()+Life+Margin+2*Every })
			b.mu.Lock()
			if len(b.sent) > 0 {
				t.Error("a device took it that may not lead after that note")
			}
			b.mu.Unlock()
			b.stop()

			// A connection that is cut costs one timeout, and a database that is cut gives no deadline.
			p := newProxy(t, address)
			a = run(t, p.address, "a", "one")
			a.renewed(t, 2)
			for range 2 {
				last := a.last()
				p.silence(false)
				between(t, "from one renewal to the next when the connection is cut in between", a.renewed(t, 1)-last, Every, Every+timeout+slow)
			}
			b = run(t, address, "b", "two")
			b.sees(t, &b.others, "{a one}")
			p.silence(true)
			a.reports(t, "it does not answer; start the SQL server")
			last := a.last()
			between(t, "from the last renewal to that of another device when the network is cut", b.renewed(t, 1)-last, Life+Margin, Life+Margin+slow)
			if a.last() != last {
				t.Errorf("a deadline of %s without an answer, after that of %s", a.last(), last)
			}
			p.heal()
			a.sees(t, &a.others, "{b two}")
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
