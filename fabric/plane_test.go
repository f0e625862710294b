package fabric

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel"
)

// Without any member: a configuration is applied once, again after the loss of the process, and until it succeeds; a
// peer that is not served is reported, and checked until it is.
func TestPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := &fakePlane{pid: 1}
		s := &oneServed{}
		failures := &problems{log: slog.New(slog.DiscardHandler), changed: &changes.Signal{}, open: map[string]rpc.Error{}}
		applied := func() int { data.mu.Lock(); defer data.mu.Unlock(); return data.told }
		p := &plane{
			data: data, timing: DefaultTiming, log: slog.New(slog.DiscardHandler), problems: failures, served: s,
			wanted: make(chan struct{}, 1), doubts: make(chan struct{}, 1),
		}
		if ok, why := p.tunnel("a"); ok || why != "" {
			t.Errorf("before the start: %t, %q", ok, why)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go p.run(ctx)
		synctest.Wait()
		p.kick()
		synctest.Wait()
		if applied() != 1 || s.inForce.Load() != 1 || !p.has("a") || p.has("b") {
			t.Errorf("applied %d times, in force %d times", applied(), s.inForce.Load())
		}

		data.kill()
		p.doubt()
		synctest.Wait()
		if applied() != 2 || len(data.config().Peers) != 1 {
			t.Errorf("after the loss of the process: applied %d times", applied())
		}

		data.setBroken(true)
		p.Reapply()
		synctest.Wait()
		if ok, why := p.tunnel("a"); ok || why != "there is no tunnel on this device: no TUN device" || len(failures.Problems()) == 0 {
			t.Errorf("without a device: %t, %q, problem %v", ok, why, failures.Problems())
		}
		data.setBroken(false)
		time.Sleep(maxRetry*DefaultTiming.Retry + time.Second)
		synctest.Wait()
		if !p.has("a") || len(failures.Problems()) != 0 {
			t.Errorf("with a device again: problem %v", failures.Problems())
		}

		data.setRefuse(map[string]tunnel.Problem{"a": {Text: "its key is bad", Cure: "give it another"}})
		p.Reapply()
		synctest.Wait()
		if ok, why := p.tunnel("a"); ok || why != "its key is bad; give it another" || s.unserved.Load() != 1 {
			t.Errorf("a refused peer: %t, %q, reported %d times", ok, why, s.unserved.Load())
		}
		data.setRefuse(nil)
		before := s.inForce.Load()
		time.Sleep(checkEvery*DefaultTiming.Ping + time.Second)
		synctest.Wait()
		if !p.has("a") || s.inForce.Load() == before {
			t.Error("a peer that is served again stays without a tunnel")
		}
	})
}

// oneServed has one peer.
type oneServed struct{ inForce, unserved atomic.Int32 }

func (s *oneServed) desired() tunnel.Config {
	return tunnel.Config{Port: 7442, Peers: []tunnel.Peer{{ID: "a"}}}
}

func (s *oneServed) pingAll() { s.inForce.Add(1) }

func (s *oneServed) CheckPrefixes() { s.unserved.Add(1) }
