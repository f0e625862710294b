package fabric

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/lanpeers"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// Strangers that answer calls and then say nothing are called a few at once, and keep no peer waiting.
func TestSlowStrangersKeepNoPeerWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	a.awaitState(b, peer.Connected)
	var now, most, ended atomic.Int64
	released := make(chan struct{})
	for n := range byte(24) {
		s := newStranger(t, 60+n)
		l, err := tls.Listen("tcp", "127.0.0.1:0", rpc.ServerTLS(s.id))
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if at := now.Add(1); at > most.Load() {
				most.Store(at)
			}
			io.Copy(io.Discard, r.Body) // then the server sees that the caller has gone
			select {
			case <-released:
			case <-r.Context().Done():
				ended.Add(1)
			}
			now.Add(-1)
		})}
		go server.Serve(l) // it ends with the test
		t.Cleanup(func() { server.Close() })
		at := netip.AddrPortFrom(onLAN, uint16(l.Addr().(*net.TCPAddr).Port))
		go a.exchanger.discovered("crowd", discovery.Event{Kind: discovery.Added, Entry: discovery.Entry{Key: string(s.id.ID), ID: s.id.ID, Addrs: []netip.AddrPort{at}}})
	}
	t.Cleanup(func() { close(released) })
	a.await("as many as may be at once", func() bool { return now.Load() == maxStrangersExchanges })
	since := time.Now()
	a.due(b.id())
	a.await("an exchange with the peer", func() bool {
		a.members.mu.Lock()
		defer a.members.mu.Unlock()
		return a.members.byID(b.id()).LastExchange().After(since)
	})
	if n := ended.Load(); n > 0 {
		t.Errorf("%d strangers had their turn before the peer, after %s", n, time.Since(since))
	}
	if n := most.Load(); n > maxStrangersExchanges {
		t.Errorf("%d at once", n)
	}
}

// While the API server is slow to say what is in use, a stranger for whom another has to go waits, and nobody else.
func TestAStrangerAtAFullLANWaitsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var slow atomic.Bool
	entered, release := make(chan struct{}, 64), make(chan struct{})
	a := w.cluster(1, "a", func(c *Config) {
		c.LANPeers = lanpeers.Limits{Total: 1, BySource: 1, Window: time.Nanosecond, Silent: time.Nanosecond, Settled: time.Nanosecond}
		c.InUse = func(context.Context) (map[peer.ID]bool, bool) {
			if slow.Load() {
				entered <- struct{}{}
				<-release
			}
			return map[peer.ID]bool{}, true
		}
	}, alone)
	first, second := newStranger(t, 60), newStranger(t, 61)
	if err := first.pair(a); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	result := make(chan error, 1)
	go func() { result <- second.pair(a) }()
	<-entered
	done := make(chan error, 1)
	first.starts++
	go func() { done <- first.pair(a) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the exchange of a peer waits for the API server")
	}
	select {
	case err := <-result:
		t.Errorf("the stranger did not wait: %v", err)
		close(release)
	default:
		close(release)
		if err := <-result; err != nil && pairing.Code(err) != "full" {
			t.Error(err)
		}
	}
}
