package homeapi

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// echo is an API server that says back what it hears.
func echo(t *testing.T) string {
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
			go func() { defer c.Close(); io.Copy(c, c) }() //nolint:errcheck // ends with the test
		}
	}()
	return l.Addr().String()
}

// through opens a connection that the gate serves.
func through(t *testing.T, ctx context.Context, g *Gate) *net.TCPConn {
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
	go g.Serve(ctx, c)
	if err := client.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return client.(*net.TCPConn)
}

func TestPodsOfOursArePassedOn(t *testing.T) {
	var ours atomic.Bool // becomes true while the connection waits
	asked := make(chan struct{}, 100)
	g := &Gate{API: echo(t), Log: slog.New(slog.DiscardHandler), Ours: func(a netip.Addr) bool {
		asked <- struct{}{}
		return ours.Load() && a.IsLoopback()
	}}
	c := through(t, t.Context(), g)
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

	// What goes on ends with the gate.
	ctx, stop := context.WithCancel(t.Context())
	c = through(t, ctx, g)
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
}

func isReset(err error) bool { _, ok := err.(*net.OpError); return ok }

func TestOthersAreNotPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialled := make(chan struct{})
		g := &Gate{API: "none", Log: slog.New(slog.DiscardHandler), Ours: func(netip.Addr) bool { return false }}
		ours, theirs := net.Pipe()
		begun := time.Now()
		go func() { g.Serve(t.Context(), addressed{ours}); close(dialled) }()
		if _, err := theirs.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("read: %v", err)
		}
		<-dialled
		if d := time.Since(begun); d != patience {
			t.Errorf("held for %s, want %s", d, patience)
		}
	})
}

type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 77, 0, 9), Port: 1} }
