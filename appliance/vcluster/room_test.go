package vcluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

// How many control planes fit beside the cluster itself, by boards.
func TestRoomFollowsTheMachine(t *testing.T) {
	for ram, want := range map[uint64]int{0: MaxClusters, 430 << 20: 1, 950 << 20: 3, 1900 << 20: 8, 3800 << 20: 24, 7800 << 20: 60, 64 << 30: MaxClusters} {
		if got := newRoom(ram).total; got != want {
			t.Errorf("%d MiB: %d awake, want %d", ram>>20, got, want)
		}
	}
}

// One that finds no memory waits, says so, has the one that is unused for longest asked to sleep, and has its place then.
func TestOneTooManyWaits(t *testing.T) {
	k := New(Config{State: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	k.room.total, k.room.meminfo, k.ctx = 3, filepath.Join(t.TempDir(), "meminfo"), t.Context()
	now := time.Now()
	awake := func(name string, sleep, since, usedFor time.Duration) *cluster {
		c := newCluster(k, record{Spec: Spec{Name: name, Sleep: sleep}})
		c.state, c.since = Awake, now.Add(-since)
		if usedFor > 0 {
			c.used.Store(use{now.Add(-usedFor), name})
		}
		if !k.room.await(t.Context(), c) {
			t.Fatal(name)
		}
		k.all[name] = c
		return c
	}
	never, old, fresh := awake("never", 0, time.Hour, 0), awake("old", time.Hour, time.Hour, 10*time.Minute), awake("fresh", time.Hour, time.Hour, time.Second)
	if k.room.free() != 0 {
		t.Fatalf("room for %d", k.room.free())
	}
	more := newCluster(k, record{Spec: Spec{Name: "more"}, ID: "x"})
	k.all["more"] = more
	placed := make(chan bool, 1)
	go func() {
		for !k.room.await(t.Context(), more) && t.Context().Err() == nil { // somebody asked for it meanwhile
		}
		placed <- t.Context().Err() == nil
	}()
	await.True(t, 10*time.Second, "it waits, and says for what", func() bool {
		v := more.brief()
		return v.WaitsForMemory && v.State == Starting && strings.Contains(v.Reason, "for 3 awake virtual clusters") && strings.Contains(v.Reason, "rivulet vcluster sleep")
	})
	yields := func(c *cluster) bool { c.mu.Lock(); defer c.mu.Unlock(); return c.yields }
	await.True(t, 10*time.Second, "the one that is unused for longest is asked to sleep", func() bool { return yields(old) })
	if yields(never) || yields(fresh) {
		t.Error("one that never sleeps, or is used, is asked, too")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*roomPatience)
	defer cancel()
	if _, err := k.Await(ctx, "more"); err == nil || !strings.Contains(err.Error(), "more waits: the memory of this device") {
		t.Errorf("who waits for it is told %v", err)
	}
	k.room.leave(old)
	if !<-placed || more.brief().WaitsForMemory || k.room.free() != 0 {
		t.Error("it does not take the place of one that sleeps")
	}

	k.room.total = 10
	for available, want := range map[uint64]int{100 << 20: 0, 48<<20 + 2*planeMemory: 2, 4 << 30: 7} {
		if err := os.WriteFile(k.room.meminfo, fmt.Appendf(nil, "MemTotal: 9999999 kB\nMemAvailable: %d kB\n", available>>10), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := k.room.free(); got != want {
			t.Errorf("%d MiB are available: room for %d, want %d", available>>20, got, want)
		}
	}
}

// Under memory pressure the kernel ends a control plane and not the engine, whose score is the supervisor's.
func TestTheEngineIsNotTheVictim(t *testing.T) {
	for own, want := range map[string]string{"-500\n": "0", "0\n": "500", "-1000": "0", "900": "1000", "": "0"} {
		file := filepath.Join(t.TempDir(), "oom_score_adj")
		if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := scoreOver(file); got != want {
			t.Errorf("beside %q it is %s, want %s", own, got, want)
		}
	}
}
