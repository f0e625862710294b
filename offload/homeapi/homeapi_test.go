package homeapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/test/harness/await"
)

// echo is an API server that says who it is, or back what it hears.
func echo(t *testing.T, name string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if io.WriteString(c, name); name == "" {
					io.Copy(c, c)
				}
			}()
		}
	}()
	return l.Addr().String()
}

// passed is a Router with what it has the fabric pass.
func passed() (*Router, *names) {
	n := &names{of: map[string]func(net.Conn){}}
	return &Router{Pass: n.pass, Log: slog.New(slog.DiscardHandler)}, n
}

type names struct {
	mu sync.Mutex
	of map[string]func(net.Conn)
}

func (n *names) pass(h func(net.Conn), all ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range all {
		if n.of[name] = h; h == nil {
			delete(n.of, name)
		}
	}
}

func (n *names) get(name string) func(net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.of[name]
}

// served has the gate served until the function is called, which waits for its end.
func served(t *testing.T, r *Router, n *names, g *Gate) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Serve(ctx, g) }()
	t.Cleanup(func() { cancel(); <-done })
	await.True(t, time.Minute, "the gate is served", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.Contains(r.gates, g)
	})
	return func() { cancel(); <-done }
}

// through opens a connection that asks for the name.
func through(t *testing.T, n *names, name string) *net.TCPConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	n.get(name)(c)
	if err := client.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return client.(*net.TCPConn)
}

func TestPodsOfOursArePassedOn(t *testing.T) {
	var ours atomic.Bool // becomes true while the connection waits
	asked := make(chan struct{}, 100)
	g := &Gate{API: echo(t, ""), Names: []string{Host}, Log: slog.New(slog.DiscardHandler), Ours: func(a netip.Addr) bool {
		asked <- struct{}{}
		return ours.Load() && a.IsLoopback()
	}}
	r, n := passed()
	stop := served(t, r, n, g)
	c := through(t, n, Host)
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	<-asked
	ours.Store(true)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}

	// What goes on ends with the gate, and nothing is passed any more.
	c = through(t, n, Host)
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := io.ReadAll(c); err != nil && !isReset(err) {
		t.Fatal(err)
	}
	if n.get(Host) != nil {
		t.Error("connections are still handed over")
	}
}

// Several homes are served in one place: each connection goes to the API server of the home
// whose pod asks, by a name of that home.
func TestSeveralHomes(t *testing.T) {
	var mu sync.Mutex
	whose := "one" // 127.0.0.1 is a pod of these
	gate := func(home string, names ...string) *Gate {
		return &Gate{API: echo(t, home), Names: names, Log: slog.New(slog.DiscardHandler), Ours: func(a netip.Addr) bool {
			mu.Lock()
			defer mu.Unlock()
			return a.IsLoopback() && strings.Contains(whose, home)
		}}
	}
	r, n := passed()
	one, two := gate("one", Host, "kubernetes"), gate("two", Host, "tenant")
	stopOne := served(t, r, n, one)
	stopTwo := served(t, r, n, two)
	answer := func(name string) string {
		t.Helper()
		c := through(t, n, name)
		got, err := io.ReadAll(c)
		if err != nil && !isReset(err) {
			t.Fatal(err)
		}
		return string(got)
	}
	pods := func(of string) { mu.Lock(); defer mu.Unlock(); whose = of }
	for _, x := range []struct{ pods, name, want string }{
		{"one", Host, "one"}, {"one", "kubernetes", "one"}, {"one", "tenant", ""},
		{"two", Host, "two"}, {"two", "kubernetes", ""}, {"two", "tenant", "two"},
		{"one two", Host, ""}, {"", Host, ""},
	} {
		pods(x.pods)
		if got := answer(x.name); got != x.want {
			t.Errorf("a pod of %q that asks for %s gets to %q, want %q", x.pods, x.name, got, x.want)
		}
	}
	stopOne()
	pods("two")
	if got := answer(Host); got != "two" || n.get("kubernetes") != nil {
		t.Errorf("with one home less: %q", got)
	}
	stopTwo()
	if n.get(Host) != nil {
		t.Error("connections are still handed over")
	}
}

func isReset(err error) bool { _, ok := errors.AsType[*net.OpError](err); return ok }

func TestOthersAreNotPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Gate{API: "none", Names: []string{Host}, Log: slog.New(slog.DiscardHandler), Ours: func(netip.Addr) bool { return false }}
		r, n := passed()
		stop := served(t, r, n, g)
		ours, theirs := net.Pipe()
		begun := time.Now()
		n.get(Host)(addressed{ours})
		if _, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("read: %v", err)
		}
		if d := time.Since(begun); d != patience {
			t.Errorf("held for %s, want %s", d, patience)
		}
		stop()
	})
}

type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 77, 0, 9), Port: 1} }
