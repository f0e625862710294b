package fabric

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel"
)

// Without any member: a configuration is applied once, again after the loss of the process, and until it succeeds; a
// peer that is not served is reported, and checked until it is.
func TestPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := &fakePlane{pid: 1}
		wanted := tunnel.Config{Port: 7442, Peers: []tunnel.Peer{{ID: "a"}}}
		var failure atomic.Pointer[rpc.Error]
		var inForce, unserved atomic.Int32
		applied := func() int { data.mu.Lock(); defer data.mu.Unlock(); return data.told }
		p := &plane{
			data: data, timing: DefaultTiming, log: slog.New(slog.DiscardHandler), desired: func() tunnel.Config { return wanted },
			problem: func(_ string, e *rpc.Error) { failure.Store(e) }, inForce: func() { inForce.Add(1) }, unserved: func() { unserved.Add(1) },
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
		if applied() != 1 || inForce.Load() != 1 || !p.has("a") || p.has("b") {
			t.Errorf("applied %d times, in force %d times", applied(), inForce.Load())
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
		if ok, why := p.tunnel("a"); ok || why != "there is no tunnel on this device: no TUN device" || failure.Load() == nil {
			t.Errorf("without a device: %t, %q, problem %v", ok, why, failure.Load())
		}
		data.setBroken(false)
		time.Sleep(maxRetry*DefaultTiming.Retry + time.Second)
		synctest.Wait()
		if !p.has("a") || failure.Load() != nil {
			t.Errorf("with a device again: problem %v", failure.Load())
		}

		data.setRefuse(map[string]tunnel.Problem{"a": {Text: "its key is bad", Cure: "give it another"}})
		p.Reapply()
		synctest.Wait()
		if ok, why := p.tunnel("a"); ok || why != "its key is bad; give it another" || unserved.Load() != 1 {
			t.Errorf("a refused peer: %t, %q, reported %d times", ok, why, unserved.Load())
		}
		data.setRefuse(nil)
		before := inForce.Load()
		time.Sleep(checkEvery*DefaultTiming.Ping + time.Second)
		synctest.Wait()
		if !p.has("a") || inForce.Load() == before {
			t.Error("a peer that is served again stays without a tunnel")
		}
	})
}
