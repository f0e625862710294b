package fabric

import (
	"bytes"
	"errors"
	"net/netip"
	"runtime/pprof"
	"sync/atomic"
	"testing"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
)

// A peer that was forgotten, and is trusted again while it is notified, is stored.
func TestAPeerReturnsWhileItIsNotified(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, s := w.cluster(1, "a", alone), newStranger(t, 60)
	trusted, again := make(chan struct{}), make(chan error, 1)
	s.answers(t, func(n int32) {
		if n == 1 {
			<-trusted
			s.record = peer.Record{}
			again <- s.pair(a)
		}
	})
	if err := s.pair(a); err != nil {
		t.Fatal(err)
	}
	close(trusted)
	if _, err := a.endings.unpeer(t.Context(), s.id.ID, Unpeer{Force: true, Forget: true}); err != nil {
		t.Fatal(err)
	}
	if err := <-again; err != nil {
		t.Fatal(err)
	}
	if _, pinned := a.record(s.id.ID); !pinned || a.store.len() != 1 {
		t.Errorf("a peer: %t, %d records stored", pinned, a.store.len())
	}
	a.stop()
	a.start()
	if _, pinned := a.record(s.id.ID); !pinned {
		t.Error("after a restart it is no peer")
	}
}

// A denial stays, though the peering is ended otherwise at the same time.
func TestADenialWhileAPeerIsForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, s := w.cluster(1, "a", alone), newStranger(t, 60)
	denied := make(chan error, 1)
	s.answers(t, func(n int32) {
		if n == 1 {
			_, err := a.Deny(t.Context(), string(s.id.ID))
			denied <- err
		}
	})
	if err := s.pair(a); err != nil {
		t.Fatal(err)
	}
	_, forgotten := a.Unpeer(t.Context(), string(s.id.ID), Unpeer{Forget: true})
	if err := <-denied; err != nil {
		t.Fatalf("%v; forgotten: %v", err, forgotten)
	}
	if err := s.pair(a); pairing.Code(err) != "unpeered" {
		t.Errorf("it returns: %v", err)
	}
	if v := a.viewOf(s.id.ID); v.State != peer.Denied {
		t.Errorf("a shows %+v", v)
	}
}

// gated is a cluster that evaluates no stranger before open is closed, once shut is true.
func (w *world) gated(n byte, name string) (c *cluster, shut *atomic.Bool, open chan struct{}) {
	shut, open = &atomic.Bool{}, make(chan struct{})
	c = w.cluster(n, name, alone, func(c *Config) {
		c.OnLink = func(netip.Addr) bool {
			if shut.Load() {
				<-open
			}
			return true
		}
	})
	return c, shut, open
}

// awaitWaiting waits until a goroutine is in the function.
func (c *cluster) awaitWaiting(function string) {
	c.w.t.Helper()
	c.await("a goroutine in "+function, func() bool { return c.waiting(function) })
}

func (c *cluster) waiting(function string) bool {
	var b bytes.Buffer
	return pprof.Lookup("goroutine").WriteTo(&b, 1) == nil && bytes.Contains(b.Bytes(), []byte(function))
}

// A former peer that is denied by unpeer while it becomes a peer again is none afterwards.
func TestAPeerReturnsWhileItIsDenied(t *testing.T) {
	// Not beside others: it looks at the goroutines of the process.
	w := newWorld(t)
	a, shut, open := w.gated(1, "a")
	s := newStranger(t, 60)
	if err := errors.Join(s.pair(a), s.leave(a)); err != nil {
		t.Fatal(err)
	}
	shut.Store(true)
	s.record, s.starts = peer.Record{}, 1<<20 // its messages are newer than its end
	paired, ended := make(chan error, 1), make(chan error, 1)
	go func() { paired <- s.pair(a) }()
	a.awaitWaiting("(*admission).Admit")
	go func() {
		_, err := a.Unpeer(t.Context(), string(s.id.ID), Unpeer{Force: true})
		ended <- err
	}()
	a.awaitWaiting("(*Party).Farewell")
	close(open)
	<-paired
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if v := a.viewOf(s.id.ID); v.State != peer.Denied || a.store.len() != 0 || len(a.Links()) != 0 {
		t.Errorf("a shows %+v, %d records", v, a.store.len())
	}
}

// A cluster whose exchange is under way when this one leaves is notified, or does not become a peer.
func TestAnExchangeWhileLeaving(t *testing.T) {
	// Not beside others: it looks at the goroutines of the process.
	w := newWorld(t)
	a, shut, open := w.gated(1, "a")
	s := newStranger(t, 60)
	var notified atomic.Bool
	s.answers(t, func(int32) { notified.Store(true) })
	shut.Store(true)
	paired, left := make(chan error, 1), make(chan struct{})
	go func() { paired <- s.pair(a) }()
	a.awaitWaiting("(*admission).Admit")
	go func() { defer close(left); a.Leave(t.Context(), true) }()
	a.await("that it leaves", func() bool { return a.admission.leaving.Load() || a.waiting("(*endings).Leave") })
	close(open)
	<-paired
	<-left
	if _, pinned := a.record(s.id.ID); pinned && !notified.Load() {
		t.Error("it is a peer, and was not notified")
	}
}

// A decision does not return before an exchange that began without it has ended.
func TestADecisionDuringAnExchange(t *testing.T) {
	// Not beside others: it looks at the goroutines of the process.
	for name, decide := range map[string]func(a *cluster, s *stranger) error{
		"another mode of trust": func(a *cluster, _ *stranger) error { a.SetTrust(Policy{Mode: pairing.ModeAsk}); return nil },
		"an approval withdrawn": func(a *cluster, s *stranger) error { return a.Withdraw(s.id.ID) },
		"approved": func(a *cluster, s *stranger) error {
			v, err := a.ApproveAt(a.w.t.Context(), s.id.ID, netip.AddrPortFrom(onLAN, 1).String())
			if v.Trust.How != peer.TrustApproved {
				a.w.t.Errorf("approved: %q", v.Trust.How)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a, shut, open := w.gated(1, "a")
			s := newStranger(t, 60)
			shut.Store(true)
			paired, decided := make(chan error, 1), make(chan error, 1)
			go func() { paired <- s.pair(a) }()
			a.awaitWaiting("(*admission).Admit")
			var before bool // a peer when the decision has returned
			go func() {
				err := decide(a, s)
				_, before = a.record(s.id.ID)
				decided <- err
			}()
			a.await("the decision", func() bool {
				return len(decided) == 1 || a.waiting("(*Party).Between") || a.waiting("(*operator).approve")
			})
			close(open)
			if err := errors.Join(<-paired, <-decided); err != nil {
				t.Fatal(err)
			}
			if _, after := a.record(s.id.ID); after != before {
				t.Errorf("a peer when it returned: %t, afterwards: %t", before, after)
			}
		})
	}
}
