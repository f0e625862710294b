package memory

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTrimAfterPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changed := make(chan struct{}, 1)
		var peers, trims atomic.Int32
		peers.Store(2) // remembered from before
		go trimAfter(ctx, changed, func() int { return int(peers.Load()) }, peerSettled, func() { trims.Add(1) })
		step := func(what string, by int32, wait time.Duration, want int32) {
			t.Helper()
			peers.Add(by)
			changed <- struct{}{}
			time.Sleep(wait)
			synctest.Wait()
			if trims.Load() != want {
				t.Errorf("%s: %d trims, want %d", what, trims.Load(), want)
			}
		}
		synctest.Wait()
		step("something else has changed", 0, 2*peerSettled, 0)
		step("one comes", 1, peerSettled/2, 0)
		step("and another", 1, 2*peerSettled/3, 0)
		step("they have settled", 0, peerSettled, 1)
		step("one goes", -1, 2*peerSettled, 1)
		cancel()
		synctest.Wait()
	})
}
